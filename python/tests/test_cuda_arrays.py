"""Arrays that say they are on a GPU, without one: who is asked for what, what is refused, and what is let go of.

No byte of them is ever touched. What takes a GPU is in test_gpu.py.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import slackline

CUDA, ROCM, MANAGED = 2, 10, 13
# No memory: a processor that touches it faults.
NOWHERE = 0x7F00_0000_0000


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Fake:
    """A float32 array on a GPU that is not there."""

    def __init__(self, *shape: int, strides: tuple[int, ...] | None = None, device: tuple[int, int] = (CUDA, 0)):
        self.device, self.asked, self.deleted = device, list[dict[str, Any]](), 0
        sides = ctypes.c_int64 * len(shape)
        self.sides: tuple[Any, Any] = (sides(*shape), None if strides is None else sides(*strides))
        self.deleter = DELETER(self.delete)

    def delete(self, _managed: int) -> None:
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append({"stream": stream})
        shape, strides = self.sides
        pointers = [ctypes.cast(sides, ctypes.POINTER(ctypes.c_int64)) for sides in (shape, strides)]
        tensor = DLTensor(NOWHERE, *self.device, len(shape), 2, 32, 1, *pointers, 0)
        self.managed = DLManagedTensor(tensor, None, self.deleter)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), b"dltensor", None)


class Interface:
    """The same by CUDA's array interface."""

    def __init__(self, *shape: int, **others: Any):
        data = (NOWHERE, others.pop("readonly", False))
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": data, "version": 3, **others}


@pytest.fixture
def publisher() -> Any:
    with slackline.Publisher([slackline.TensorSpec("a", "float32", (2, 3))]) as publisher:
        yield publisher


def no_gpu() -> slackline.Unsupported:
    """The error of this machine, if it has no GPU: the tests below are of such a machine."""
    try:
        slackline.Gpu(0)
    except slackline.Unsupported as error:
        return error
    pytest.skip("this machine has a GPU: test_gpu.py is for it")


def refusals(publisher: slackline.Publisher, array: Any) -> list[Callable[[], object]]:
    reader = slackline.Reader(publisher.address)
    return [lambda: publisher.publish({"a": array}), lambda: reader.pull({"a": array})]


def test_without_a_driver_the_error_is_typed_and_has_the_remedy() -> None:
    error = no_gpu()
    assert "libcuda.so.1" in str(error) or "GPU 0" in str(error) or "CUDA" in str(error)
    assert error.remedy is not None and str(error).endswith(error.remedy)
    assert error.operation in ("opening the NVIDIA driver", "opening a GPU") and not error.is_retryable


@pytest.mark.parametrize("kind", [Fake, Interface])
def test_an_array_on_a_gpu_that_is_not_there_is_refused_as_the_gpu_is(
    publisher: slackline.Publisher, kind: Any
) -> None:
    expected = str(no_gpu())
    for call in refusals(publisher, kind(2, 3)):
        with pytest.raises(slackline.Unsupported) as refused:
            call()
        assert str(refused.value) == expected
    assert publisher.version == 0
    assert publisher.publish({"a": np.ones((2, 3), "float32")}) == 1


def test_a_worker_refuses_such_arrays_and_goes_on() -> None:
    expected = str(no_gpu())
    with slackline.Server({"a": np.zeros((2, 3), "float32")}, learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:
            with pytest.raises(slackline.Unsupported) as refused:
                worker.step({"a": Fake(2, 3)})
            assert str(refused.value) == expected
            with worker.step() as step, pytest.raises(slackline.Unsupported):
                step.publish(gradient={"a": Fake(2, 3)})
            with worker.step() as step:
                step.publish(gradient={"a": np.ones((2, 3), "float32")})
            worker.flush()
        assert (server.parameters()["a"].numpy() == -1).all()


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (Fake(2, 3, strides=(4, 1)), "not in C order"),
        (Fake(2, 3, strides=(1, 2)), "not in C order"),
        (Interface(2, 3, strides=(16, 4)), "not in C order"),
        (Interface(2, 3, mask=object()), "mask"),
        (Fake(2, 3, device=(MANAGED, 0)), "managed memory"),
        (Fake(2, 3, device=(ROCM, 0)), "on device 10"),
        (Fake(3, 2), r"\[2, 3\].*\[3, 2\]"),
        (Interface(2, 3, typestr="<f8"), "float64"),
        (Interface(2, 3, typestr=">f4"), "type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_such_array_is_refused_before_a_gpu_is_looked_for(
    publisher: slackline.Publisher, array: Any, text: str
) -> None:
    for call in refusals(publisher, array):
        with pytest.raises(slackline.LayoutMismatch, match=text) as refused:
            call()
        assert refused.value.remedy
    assert publisher.version == 0


def test_an_array_that_is_read_only_is_not_pulled_into(publisher: slackline.Publisher) -> None:
    publish, pull = refusals(publisher, Interface(2, 3, readonly=True))
    with pytest.raises(slackline.LayoutMismatch, match="read-only"):
        pull()


@pytest.mark.parametrize("given, asked", [(None, 1), (0, 1), (1, 1), (0x5678, 0x5678)])
def test_dlpack_is_asked_for_the_stream_of_the_copies(publisher: slackline.Publisher, given: Any, asked: int) -> None:
    class Stream:
        cuda_stream = given

    no_gpu()
    for stream in [given] if given is None else [given, Stream()]:
        array = Fake(2, 3)
        with pytest.raises(slackline.Unsupported):
            publisher.publish({"a": array}, stream=stream)
        assert array.asked[-1] == {"stream": asked}


def test_what_is_no_stream_and_the_stream_of_each_thread_are_refused(publisher: slackline.Publisher) -> None:
    reader = slackline.Reader(publisher.address)
    for stream in ("current", 2, -1):
        for call in (
            lambda: publisher.publish({"a": Fake(2, 3)}, stream=stream),
            lambda: reader.pull({"a": Fake(2, 3)}, stream=stream),
        ):
            with pytest.raises(slackline.BadOption, match="stream") as refused:
                call()
            assert refused.value.remedy
    with pytest.raises(slackline.BadOption, match="each thread"):
        publisher.publish({"a": Interface(2, 3, stream=2)})


def test_a_tensor_of_dlpack_is_deleted_once_and_an_array_is_let_go(publisher: slackline.Publisher) -> None:
    array, interface = Fake(2, 3), Interface(2, 3)
    kept = weakref.ref(interface)
    for given in (array, interface):
        with pytest.raises(slackline.Error):
            publisher.publish({"a": given})
    del given, interface
    # What is not let go of at once is so by the next call.
    publisher.publish({"a": np.zeros((2, 3), "float32")})
    gc.collect()
    assert array.deleted == 1 and kept() is None


class Temporary:
    """An array whose interface alone keeps the memory that it names."""

    def __init__(self, looked: Callable[[], None]) -> None:
        self.looked = looked
        self.kept: Callable[[], object] = lambda: None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        memory = {self}
        self.kept = weakref.ref(memory)
        self.looked()
        return {**Interface(2).__cuda_array_interface__, "memory": memory}


def test_what_an_array_interface_keeps_is_kept_until_the_arrays_are_copied() -> None:
    seen: list[bool] = []
    first = Temporary(lambda: None)
    given = {"a": first, "b": Temporary(lambda: seen.append(first.kept() is not None))}
    table = [slackline.TensorSpec(name, "float32", (2,)) for name in given]
    with slackline.Publisher(table) as publisher:
        with pytest.raises(slackline.Error):
            publisher.publish(given)
        assert seen == [True]
        publisher.publish({name: np.zeros(2, "float32") for name in given})
        assert first.kept() is None


def test_the_interpreter_is_asked_to_let_go_without_another_call(publisher: slackline.Publisher) -> None:
    array = Fake(2, 3)
    with pytest.raises(slackline.Error):
        publisher.publish({"a": array})
    for _ in range(10_000):
        if array.deleted:
            break
    assert array.deleted == 1


def test_a_table_is_laid_out_by_arrays_on_a_gpu() -> None:
    with slackline.Publisher({"a": Fake(4, 5), "b": Interface(7)}) as publisher:
        assert [(spec.name, spec.dtype, spec.shape) for spec in publisher.metadata] == [
            ("a", "float32", (4, 5)),
            ("b", "float32", (7,)),
        ]


def frames_in(memory: Any) -> slackline.Publisher:
    return slackline.Publisher([slackline.TensorSpec("a", "float32", (2, 3))], gpu_memory=memory)


@pytest.mark.parametrize("memory", ["tensor", 7, b"bytes", np.zeros(3 * 4096, "uint8"), Fake(9, device=(ROCM, 0))])
def test_what_is_not_on_a_gpu_is_no_memory_for_frames(memory: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(memory).__name__}: give a tensor on a GPU, .* as `gpu_memory`"):
        frames_in(memory)


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (Fake(64, 64, strides=(128, 1)), "not in C order"),
        (Fake(4096, device=(MANAGED, 0)), "managed memory"),
        (Interface(4096, readonly=True), "read-only"),
    ],
    ids=["strides", "managed", "read-only"],
)
def test_memory_that_cannot_hold_frames_is_refused_before_a_gpu_is_looked_for(memory: Any, text: str) -> None:
    with pytest.raises(slackline.LayoutMismatch, match=text) as refused:
        frames_in(memory)
    assert refused.value.remedy


def test_memory_for_frames_takes_their_gpu_and_is_let_go_of_without_it(publisher: slackline.Publisher) -> None:
    tensor, interface = Fake(3 * 4096), Interface(3 * 4096)
    kept = weakref.ref(interface)
    for given in (tensor, interface):
        with pytest.raises(slackline.BadOption, match="`gpu_memory` is of no use without `gpu`") as refused:
            frames_in(given)
        assert refused.value.remedy == "name its GPU: gpu=slackline.Gpu(0)"
    # The exception has the call's frames, and these the array.
    del given, interface, refused
    publisher.publish({"a": np.zeros((2, 3), "float32")})
    gc.collect()
    assert tensor.asked == [{"stream": 1}] and tensor.deleted == 1 and kept() is None


def test_records_and_initial_values_are_of_arrays_on_the_host(publisher: slackline.Publisher) -> None:
    for call in (
        lambda: publisher.publish_recorded({"a": Fake(2, 3)}),
        lambda: slackline.Server({"a": Fake(2, 3)}),
    ):
        with pytest.raises(slackline.Unsupported, match="copy it to the memory of the host first"):
            call()
    assert publisher.version == 0


def test_steps_copy_into_and_out_of_arrays_of_the_host() -> None:
    with slackline.Server({"a": np.full(5, 2, "float32"), "b": np.zeros((), "float32")}, learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:
            into = {"a": np.zeros(5, "float32"), "b": np.ones((), "float32")}
            for _ in range(3):
                with worker.step(into) as step:
                    assert (into["a"] == step.parameters["a"].numpy()).all() and into["b"] == 0
                    step.publish(0.5, {"a": into["a"] / 2, "b": np.zeros((), "float32")})
            worker.flush()
            with pytest.raises(slackline.LayoutMismatch):
                worker.step({"a": into["a"]})
            with worker.step() as step, pytest.raises(slackline.LayoutMismatch):
                step.publish(gradient={"a": np.zeros(5, "float64"), "b": into["b"]})
        assert (server.parameters()["a"].numpy() == 0.25).all()
