"""Arrays of unusual libraries, which are taken as they say that they are, and given back when they may be."""

from __future__ import annotations

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
