"""Arrays of unusual libraries, which are taken as they say that they are, and given back when they may be."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import slackline


def indirect(values: list[int], flags: int = 0) -> Any:
    """An array of pointers to its rows, as PIL has them."""
    buffers: Any = pytest.importorskip("_testbuffer", reason="this Python was installed without its tests")
    return buffers.ndarray(values, shape=[2, len(values) // 2], format="q", flags=buffers.ND_PIL | flags)


def test_an_array_of_pointers_to_its_rows_is_refused_and_not_read(transport: str) -> None:
    rows = indirect([1, 2, 3, 4, 5, 6])
    table = [slackline.TensorSpec("a", "int64", (2, 3))]
    with slackline.Publisher(table, transport=transport) as publisher:
        with pytest.raises(slackline.LayoutMismatch, match="suboffsets"):
            publisher.publish({"a": rows})
        assert publisher.version == 0
        publisher.publish({"a": np.array(memoryview(rows).tolist())})
        with slackline.Reader(publisher.address) as reader:
            assert reader.pull()["a"].numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


def test_an_array_of_pointers_to_its_rows_is_refused_and_not_written(transport: str) -> None:
    buffers: Any = pytest.importorskip("_testbuffer", reason="this Python was installed without its tests")
    rows = indirect([0] * 6, buffers.ND_WRITABLE)
    given = np.arange(6).reshape(2, 3)
    with slackline.Publisher({"a": given}, transport=transport) as publisher:
        publisher.publish({"a": given})
        with slackline.Reader(publisher.address) as reader:
            with pytest.raises(slackline.LayoutMismatch, match="suboffsets"):
                reader.pull({"a": rows})
    assert np.array(memoryview(rows).tolist()).tolist() == [[0, 0, 0], [0, 0, 0]]


LASTS_LONGER = """
import numpy, slackline

class Only:
    def __init__(self, array):
        self.array = array
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

publisher = slackline.Publisher({"a": numpy.zeros(10)})
publisher.publish({"a": numpy.ones(10)})
reader = slackline.Reader(publisher.address)
snapshot = reader.pull({"a": Only(numpy.zeros(10))})
array = numpy.from_dlpack(snapshot["a"])
assert (array == 1).all()
"""


def test_a_program_whose_arrays_outlive_its_interpreter_ends_by_itself() -> None:
    done = subprocess.run([sys.executable, "-c", LASTS_LONGER], timeout=60, check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_scalars_of_one_type_are_published_each_with_its_own_value(transport: str) -> None:
    values = np.arange(1000) / 7
    stats = {"mean": values.mean(), "std": values.std(), "max": values.max(), "few": np.float32(3)}
    with slackline.Publisher(stats, transport=transport) as publisher:
        publisher.publish(stats)
        with slackline.Reader(publisher.address) as reader:
            snapshot = reader.pull()
            for name, value in stats.items():
                assert snapshot[name].numpy()[()] == value


def test_a_server_begins_with_the_scalars_that_it_was_given() -> None:
    with slackline.Server({"a": np.float32(1), "b": np.float32(2), "c": np.float32(3)}) as server:
        parameters = server.parameters()
        assert [float(parameters[name].numpy()) for name in "abc"] == [1, 2, 3]


def test_scalars_of_types_that_numpy_lacks_are_published_with_their_values() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    scalars = {name: ml_dtypes.bfloat16(value) for name, value in zip("abc", (1.5, -2, 3e38), strict=True)}
    with slackline.Publisher(scalars) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(scalars)
        snapshot = reader.pull()
        for name, value in scalars.items():
            assert snapshot[name].numpy().view(ml_dtypes.bfloat16)[()] == value
        with pytest.raises(slackline.LayoutMismatch, match="read-only"):
            reader.pull(scalars)


def test_a_scalar_is_refused_as_memory_to_pull_into(transport: str) -> None:
    given = {"a": np.int64(7), "b": np.int64(8)}
    with slackline.Publisher(given, transport=transport) as publisher:
        publisher.publish(given)
        with slackline.Reader(publisher.address) as reader:
            with pytest.raises(slackline.LayoutMismatch, match="read-only"):
                reader.pull(given)
            # Arrays without a dimension are written.
            into: dict[str, Any] = {"a": np.zeros((), "int64"), "b": ctypes.c_int64()}
            reader.pull(into)
            assert (into["a"][()], into["b"].value) == (7, 8)


class Copied:
    """An array whose memory is a copy that its interface alone keeps."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        copy = self.array.copy()
        return {**copy.__array_interface__, "keeps": copy}


def test_memory_that_an_array_interface_alone_keeps_is_read_while_it_is_there() -> None:
    given: dict[str, Any] = {str(value): Copied(np.full(20, value)) for value in range(20)}
    with slackline.Publisher(given) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(given)
        assert all((array.numpy() == int(name)).all() for name, array in reader.pull().items())


def test_arrays_of_ctypes_and_memory_without_a_dimension_are_taken(transport: str) -> None:
    two_rows: Any = ctypes.c_float * 3 * 2
    given = {"rows": two_rows((1, 2, 3), (4, 5, 6)), "one": memoryview(ctypes.c_int64(5))}
    with slackline.Publisher(given, transport=transport) as publisher:
        publisher.publish(given)
        into = two_rows()
        with slackline.Reader(publisher.address) as reader:
            snapshot = reader.pull({"rows": into, "one": np.zeros((), "int64")})
            assert (snapshot["one"].shape, int(snapshot["one"].numpy())) == ((), 5)
        assert [list(row) for row in into] == [[1, 2, 3], [4, 5, 6]]


def test_an_array_that_refuses_its_buffer_says_why() -> None:
    view = memoryview(bytearray(8))
    view.release()
    with pytest.raises(ValueError, match="released memoryview"):
        slackline.Publisher({"a": view})


@pytest.mark.parametrize("shape", [(2, 0), (0, 2), (3, 0, 2)])
def test_an_array_without_elements_is_written_whatever_its_strides(shape: tuple[int, ...]) -> None:
    empty = np.lib.stride_tricks.as_strided(np.zeros(shape), shape, [0] * len(shape))
    given = {"a": empty, "b": np.ones(1)}
    with slackline.Publisher(given) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(given)
        assert reader.pull(given).version == 1
