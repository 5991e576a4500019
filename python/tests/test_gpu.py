"""Tensors of torch on a GPU, published, pulled and trained with.

It takes torch, a GPU and its driver. Where one of them is missing, all of this is skipped, and says so.

It shares nothing with the other tests but `gpu_tensors.py`, so that it runs where little is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import slackline

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

from gpu_tensors import BUSY, fill, holds, pattern, tensors  # noqa: E402 (it takes torch)

ROUTES = [("shm", False), ("shm", True), ("tcp", False), ("tcp", True)]


# What other processes run first.
BEGIN = f"""
import ctypes, sys, torch, slackline
sys.path.append({str(Path(__file__).parent)!r})
from gpu_tensors import fill, holds, tensors
"""


@pytest.fixture(params=ROUTES, ids=lambda route: f"{route[0]}-{'gpu' if route[1] else 'host'}")
def route(request: pytest.FixtureRequest) -> tuple[str, bool]:
    """A transport, and whether the payloads of both sides are on the GPU."""
    transport, on_gpu = request.param
    return str(transport), bool(on_gpu)


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts another process that runs this code behind what is shared, and ends it with the test."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, environment: dict[str, str] | None = None, **names: Any) -> subprocess.Popen[str]:
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        child = subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", BEGIN + given + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def gpu_of(on_gpu: bool) -> slackline.Gpu | None:
    return slackline.Gpu(0) if on_gpu else None


def publisher_of(table: Any, transport: str, on_gpu: bool) -> slackline.Publisher:
    return slackline.Publisher(table, transport=transport, gpu=gpu_of(on_gpu))


READING = """
gpu = slackline.Gpu(0) if on_gpu else None
into = tensors()
with slackline.Reader(address, gpu=gpu) as reader:
    for version in range(1, versions + 1):
        snapshot = reader.pull(into, min_version=version)
        assert holds(into, snapshot.version), (version, snapshot.version)
        assert snapshot.step == snapshot.version * 10
        print(snapshot.version)
        sys.stdin.readline()
    assert (gpu is None) == (reader.gpu_path is None), reader.gpu_path
    staged = gpu.host_bytes_copied if gpu else None
print("staged", staged)
"""


def test_a_version_goes_from_a_tensor_on_the_gpu_to_one_of_another_process(
    route: tuple[str, bool], python: Callable[..., subprocess.Popen[str]]
) -> None:
    transport, on_gpu = route
    given = tensors()
    with publisher_of(given, transport, on_gpu) as publisher:
        child = python(READING, address=publisher.address, on_gpu=on_gpu, versions=5)
        for version in range(1, 6):
            fill(given, version)
            assert publisher.publish(given, step=version * 10) == version
            assert child.stdout is not None and child.stdin is not None
            assert child.stdout.readline().strip() == str(version)
            child.stdin.write("\n")
            child.stdin.flush()
        assert child.stdout is not None
        staged = child.stdout.readline().split()
        assert child.wait(timeout=60) == 0
    # Over shared memory no byte of a payload passes the host where both sides are on the GPU.
    if on_gpu:
        assert (int(staged[1]) > 0) == (transport == "tcp"), staged


def frames_for(table: Any, frames: int = 3) -> tuple[Any, Any]:
    """Memory for the frames of a publisher, with a tensor behind it in the same allocation."""
    bytes_of = sum(-(-tensor.nbytes // 256) * 256 for tensor in table.values())
    memory = torch.full((frames * (-(-bytes_of // 4096) * 4096) + 4096,), 9, dtype=torch.uint8, device="cuda")
    return memory[:-4096], memory[-4096:]


def test_frames_lie_in_a_tensor_of_the_trainer_s_until_the_last_reader_has_left(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    given = tensors()
    frames, behind = frames_for(given)
    lent = Interface(frames)
    kept = weakref.ref(lent)
    # What the stream still has to do with the memory comes before it is cleared.
    torch.cuda._sleep(BUSY)
    frames.fill_(7)
    publisher = slackline.Publisher(given, transport="shm", gpu=slackline.Gpu(0), gpu_memory=lent)
    del lent
    assert not frames.any() and bool((behind == 9).all())
    child = python(READING, address=publisher.address, on_gpu=True, versions=3)
    assert child.stdout is not None and child.stdin is not None
    for version in range(1, 4):
        fill(given, version)
        assert publisher.publish(given, step=version * 10) == version
        assert child.stdout.readline().strip() == str(version)
        assert any(torch.equal(frame[: given["bytes"].numel()], given["bytes"]) for frame in frames.chunk(3))
        if version == 3:
            publisher.close()
            assert kept() is not None, "a reader has it open"
        child.stdin.write("\n")
        child.stdin.flush()
    assert child.stdout.readline().split() == ["staged", "0"]
    assert child.wait(timeout=60) == 0
    begun = time.monotonic()
    while kept() is not None and time.monotonic() < begun + 60:
        time.sleep(0.01)
    assert kept() is None and bool((behind == 9).all())


def test_memory_for_frames_has_their_bytes_or_the_error_has_the_number() -> None:
    given = tensors()
    frames, _ = frames_for(given)
    with pytest.raises(slackline.BadOption, match=f"{len(frames) - 1} bytes where the frames have {len(frames)}"):
        slackline.Publisher(given, gpu=slackline.Gpu(0), gpu_memory=frames[1:])
    with slackline.Publisher(given, gpu=slackline.Gpu(0), gpu_memory=frames) as publisher:
        assert publisher.publish(given) == 1


EXPANDABLE = """
memory = torch.zeros(3 * 4096, dtype=torch.uint8, device="cuda")
try:
    slackline.Publisher([slackline.TensorSpec("a", "uint8", (100,))], gpu=slackline.Gpu(0), gpu_memory=memory)
except slackline.Unsupported as error:
    print("expandable_segments:False" in str(error))
"""


def test_memory_that_no_process_can_open_is_refused_with_the_setting(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    child = python(EXPANDABLE, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert child.stdout is not None and child.stdout.readline().strip() == "True"
    assert child.wait(timeout=60) == 0


def test_arrays_of_the_host_and_tensors_of_the_gpu_share_a_version() -> None:
    table = {"host": torch.arange(5.0), "gpu": torch.arange(7.0, device="cuda")}
    with publisher_of(table, "shm", False) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(table)
        into = {"host": torch.zeros(7, device="cuda")[:5], "gpu": torch.zeros(7)}
        snapshot = reader.pull(into)
        assert torch.equal(into["host"].cpu(), table["host"]) and torch.equal(into["gpu"], table["gpu"].cpu())
        assert torch.equal(snapshot["gpu"].torch(), into["gpu"])
        with pytest.raises(slackline.Unsupported, match="pulled into"):
            snapshot["host"]


class Interface:
    """A tensor that only has CUDA's array interface, as numba's arrays do."""

    def __init__(self, tensor: Any):
        self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__


def test_arrays_with_cuda_s_interface_alone_use_the_default_stream(route: tuple[str, bool]) -> None:
    given, into = (torch.zeros(1003, device="cuda")[2:] for _ in range(2))
    with publisher_of({"t": Interface(given)}, *route) as publisher:
        with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
            torch.cuda._sleep(BUSY)
            given.fill_(7)
            publisher.publish({"t": Interface(given)})
            reader.pull({"t": Interface(into)})
            assert bool((into == 7).all())


def test_a_version_has_what_the_busy_stream_writes_before_it_is_published(route: tuple[str, bool]) -> None:
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        given = tensors()
        torch.cuda.synchronize()
        with publisher_of(given, *route) as publisher:
            with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(BUSY)
                    fill(given, 1)
                    publisher.publish(given)
                    into = tensors()
                    reader.pull(into)
                    assert holds(into, 1)


def test_a_pull_comes_behind_the_stream_s_work_and_before_what_it_gets_later(route: tuple[str, bool]) -> None:
    given = tensors()
    with publisher_of(given, *route) as publisher:
        with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
            for version, stream in enumerate((torch.cuda.default_stream(), torch.cuda.Stream()), 1):
                fill(given, version)
                torch.cuda.synchronize()
                publisher.publish(given)
                into = tensors()
                torch.cuda.synchronize()
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(BUSY)
                    fill(into, 100)
                    before = {name: tensor.clone() for name, tensor in into.items()}
                    reader.pull(into)
                    after = {name: tensor.clone() for name, tensor in into.items()}
                    assert holds(before, 100), "the copy came before the stream's work"
                    assert holds(after, version), "the stream went on before the copy"


def test_a_stream_that_is_named_is_the_one_that_is_waited_for(route: tuple[str, bool]) -> None:
    given, stream = tensors(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with publisher_of(given, *route) as publisher:
        with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
            for version, named in enumerate((stream, stream.cuda_stream), 1):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(BUSY)
                    fill(given, version)
                publisher.publish(given, stream=named)
                into = tensors()
                reader.pull(into, stream=named)
                with torch.cuda.stream(stream):
                    assert holds(into, version)


def test_memory_that_is_freed_at_once_and_used_again_is_right(route: tuple[str, bool]) -> None:
    size = 5_000_003
    spec = [slackline.TensorSpec("t", "uint8", (size,))]
    with publisher_of(spec, *route) as publisher:
        with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
            reused = 0
            for version in range(1, 21):
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                tensor.copy_(pattern(tensor, version))
                address = tensor.data_ptr()
                publisher.publish({"t": tensor})
                del tensor
                other = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
                into = torch.empty(size, dtype=torch.uint8, device="cuda")
                reader.pull({"t": into})
                assert holds({"t": into}, version)
                reused += other.data_ptr() == address
                # What takes the memory of a tensor that was pulled into comes behind the copy.
                torch.cuda._sleep(BUSY // 40)
                publisher.publish({"t": other})
                reader.pull({"t": into})
                del into
                zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
                torch.cuda.synchronize()
                assert not zeros.any(), "a copy came into memory that was given out again"
                publisher.publish({"t": zeros})
                del other, zeros
            assert reused > 0, "the allocator gave no memory out again: the test shows nothing"


def test_a_tensor_is_kept_while_its_late_copy_is_under_way(route: tuple[str, bool]) -> None:
    size = 5_000_003
    spec = [slackline.TensorSpec("t", "uint8", (size,))]
    with publisher_of(spec, *route) as publisher:
        with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
            publisher.publish({"t": torch.zeros(size, dtype=torch.uint8, device="cuda")})  # locks what it has to
            tensor, stream = torch.empty(size, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
            tensor.copy_(pattern(tensor, 2))
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(5 * BUSY)
            with pytest.raises(slackline.DeadlineError, match="did not copy"):
                publisher.publish({"t": tensor}, stream=stream, timeout=0.05)
            address = tensor.data_ptr()
            del tensor
            other = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
            assert other.data_ptr() != address, "the memory was given out under the copy"
            torch.cuda.synchronize()
            reader.pull({"t": other}, min_version=2)
            assert holds({"t": other}, 2)


def test_tensors_are_let_go_of_once_their_copies_are_over(route: tuple[str, bool]) -> None:
    size = 1 << 20
    spec = [slackline.TensorSpec("t", "uint8", (size,))]
    with publisher_of(spec, *route) as publisher:
        with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
            begin = torch.cuda.memory_allocated()
            for _ in range(50):
                publisher.publish({"t": torch.zeros(size, dtype=torch.uint8, device="cuda")})
                reader.pull({"t": torch.zeros(size, dtype=torch.uint8, device="cuda")})
            torch.cuda.synchronize()
            # The last ones may still be held: that they are over is noticed by the next copy.
            assert torch.cuda.memory_allocated() - begin <= 6 * size


def test_threads_that_publish_and_pull_do_not_stop_each_other(route: tuple[str, bool]) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            spec = [slackline.TensorSpec("t", "float32", (1001,))]
            with publisher_of(spec, *route) as publisher:
                with slackline.Reader(publisher.address, gpu=gpu_of(route[1])) as reader:
                    for value in range(100):
                        publisher.publish({"t": torch.full((1001,), float(value), device="cuda")})
                        into = torch.zeros(1001, device="cuda")
                        reader.pull({"t": into})
                        assert bool((into == value).all())
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread waits for ever"
    assert not failures, failures


SEGMENTS = """
gpu = slackline.Gpu(0) if on_gpu else None
size = (90 << 20) + 7
given, into = (torch.zeros(size + 1, dtype=torch.uint8, device="cuda")[1:] for _ in range(2))
base, length = ctypes.c_uint64(), ctypes.c_size_t()
driver = ctypes.CDLL("libcuda.so.1")
found = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(length), ctypes.c_uint64(given.data_ptr()))
assert found == 0, found
with slackline.Publisher({"t": given}, transport=transport, gpu=gpu) as publisher:
    with slackline.Reader(publisher.address, gpu=gpu) as reader:
        for version in (1, 2):
            fill({"t": given}, version)
            publisher.publish({"t": given})
            reader.pull({"t": into})
            assert holds({"t": into}, version)
assert base.value + length.value < given.data_ptr() + size, "the tensor is in one segment: this shows nothing"
print("over segments")
"""


def test_tensors_over_several_expandable_segments_are_whole(
    route: tuple[str, bool], python: Callable[..., subprocess.Popen[str]]
) -> None:
    expandable = "expandable_segments:True"
    environment = {"PYTORCH_CUDA_ALLOC_CONF": expandable, "PYTORCH_ALLOC_CONF": expandable}
    child = python(SEGMENTS, environment, transport=route[0], on_gpu=route[1])
    told, _ = child.communicate(timeout=120)
    assert child.returncode == 0 and told == "over segments\n"


WORKING = """
torch.manual_seed(0)
gpu = slackline.Gpu(0) if on_gpu else None
model = torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).cuda()
x, y = torch.randn(64, 13, device="cuda"), torch.randn(64, 3, device="cuda")
with slackline.Worker([address], gpu=gpu) as worker:
    into = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for _ in range(steps):
        with worker.step(into) as step:
            model.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            step.publish(float(loss), {name: p.grad for name, p in model.named_parameters()})
    worker.flush()
print("trained", float(loss))
"""


def test_a_model_on_the_gpu_is_trained_as_torch_trains_it(
    route: tuple[str, bool], python: Callable[..., subprocess.Popen[str]]
) -> None:
    transport, on_gpu = route
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).cuda()
    x, y = torch.randn(64, 13, device="cuda"), torch.randn(64, 3, device="cuda")
    initial = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.1), 20
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    server = slackline.Server(initial, learning_rate=0.1, transport=transport, gpu=gpu_of(on_gpu))
    with server:
        child = python(WORKING, address=server.address, on_gpu=on_gpu, steps=steps)
        told, _ = child.communicate(timeout=120)
        assert child.returncode == 0 and told.startswith("trained ")
        trained = server.parameters()
        assert trained.version == steps
        for name, parameter in model.named_parameters():
            assert torch.allclose(trained[name].torch(), parameter.detach().cpu(), rtol=1e-4, atol=1e-6), name


def test_what_cannot_be_copied_is_refused_by_name() -> None:
    spec = [slackline.TensorSpec("t", "float32", (4, 3))]
    with publisher_of(spec, "shm", False) as publisher, publisher_of(spec, "shm", True) as on_gpu:
        for tensor, text in (
            (torch.zeros(3, 4, device="cuda").t(), "not in C order"),
            (torch.zeros(4, 3, device="cuda", dtype=torch.float64), "float64"),
            (torch.zeros(3, 4, device="cuda"), "was given"),
        ):
            with pytest.raises(slackline.LayoutMismatch, match=text):
                publisher.publish({"t": tensor})
        for call in (lambda: on_gpu.publish({"t": torch.zeros(4, 3)}), on_gpu.frame):
            with pytest.raises(slackline.Unsupported, match="frames are in memory of a GPU"):
                call()
        with pytest.raises(slackline.BadOption, match="each thread"):
            publisher.publish({"t": torch.zeros(4, 3, device="cuda")}, stream=2)
        with pytest.raises(slackline.Unsupported, match="no GPU 99"):
            slackline.Gpu(99)
        with pytest.raises(slackline.Unsupported):
            slackline.Publisher(spec, transport="tcp", gpu=slackline.Gpu(0, require_gpudirect=True))
        # None of that has spoilt them.
        for good in (publisher, on_gpu):
            assert good.publish({"t": torch.ones(4, 3, device="cuda")}) == 1
