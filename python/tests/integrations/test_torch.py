"""`slackline.torch`, with torch: models published, pulled and trained."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `cargo xtask wheel --integrations` installs it")

import torch
from torch import nn

import slackline
import slackline.torch

TYPES = [
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.uint16,
    torch.bool,
]


def model(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).to(dtype)


def same(one: Any, other: Any) -> bool:
    """Whether two tensors have the same bytes."""
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return bool(one.dtype == other.dtype and torch.equal(*bits))


def test_slackline_alone_imports_no_torch() -> None:
    code = "import sys, slackline; assert 'torch' not in sys.modules and not hasattr(slackline, 'torch')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_comes_back_bit_by_bit(transport: str, dtype: torch.dtype) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    count = 256
    bits = torch.arange(count * size, dtype=torch.int32).to(torch.uint8)
    bits = bits % 2 if dtype == torch.bool else bits
    given = {"t": bits.view(dtype).reshape(2, -1), "s": torch.ones((), dtype=dtype)}
    into = {name: torch.zeros_like(tensor) for name, tensor in given.items()}
    with slackline.Publisher(slackline.torch.table(given), transport=transport) as publisher:
        frame = slackline.torch.publish(publisher, given, step=7, recorded=True)
        with slackline.Reader(publisher.address) as reader:
            snapshot = slackline.torch.pull(reader, into)
            assert frame.publication is not None
            assert slackline.check([frame.publication, snapshot.certificate()]).verified == 1
    assert (frame.version, snapshot.version, snapshot.step) == (1, 1, 7)
    for name, tensor in given.items():
        assert same(into[name], tensor) and same(slackline.torch.state_dict(snapshot)[name], tensor), name


def test_a_pull_changes_the_parameters_where_they_are(transport: str) -> None:
    trained, acting = model(1), model(2)
    trained(torch.randn(4, 7))  # moves the running means of the batch norm
    kept = {name: tensor.data_ptr() for name, tensor in acting.state_dict().items()}
    with slackline.Publisher(slackline.torch.table(trained), transport=transport) as publisher:
        slackline.torch.publish(publisher, trained)
        with slackline.Reader(publisher.address) as reader:
            slackline.torch.pull(reader, acting, min_version=1)
    assert {name: tensor.data_ptr() for name, tensor in acting.state_dict().items()} == kept
    torch.testing.assert_close(acting.state_dict(), trained.state_dict(), rtol=0, atol=0)
    assert acting[1].num_batches_tracked == 1  # type: ignore[index]


def test_a_state_of_another_form_is_refused_before_anything_is_written() -> None:
    trained = model(1)
    with slackline.Publisher(slackline.torch.table(trained)) as publisher:
        slackline.torch.publish(publisher, trained)
        reader = slackline.Reader(publisher.address)
        for other in (nn.Linear(7, 5), {**model(3).state_dict(), "2.bias": torch.zeros(4)}):
            before = {name: tensor.clone() for name, tensor in slackline.torch._tensors(other, "").items()}
            with pytest.raises(slackline.LayoutMismatch):
                slackline.torch.pull(reader, other)
            with pytest.raises(slackline.LayoutMismatch):
                slackline.torch.publish(publisher, other)
            torch.testing.assert_close(slackline.torch._tensors(other, ""), before, rtol=0, atol=0)
        assert publisher.version == 1
    with pytest.raises(slackline.LayoutMismatch):
        slackline.torch.table({"extra": 5})  # type: ignore[dict-item]


def test_a_target_that_cannot_be_written_is_refused_before_any_other_is_written() -> None:
    given = {"a": torch.ones(3), "b": torch.ones(3)}
    publisher = slackline.Publisher(slackline.torch.table(given))
    slackline.torch.publish(publisher, given)
    reader = slackline.Reader(publisher.address)
    wrong = {"share memory": torch.zeros(1).expand(3), "to_empty": torch.zeros(3, device="meta")}
    for told, tensor in wrong.items():
        state = {"a": torch.zeros(3), "b": tensor}
        with pytest.raises(slackline.LayoutMismatch, match=told):
            slackline.torch.pull(reader, state)
        assert state["a"].tolist() == [0.0] * 3
    # A table may well be laid out by a model without memory.
    with torch.device("meta"):
        assert slackline.torch.table(nn.Linear(2, 3))


def test_a_module_whose_state_dict_has_copies_is_refused_and_as_it_was() -> None:
    class Counts(nn.Linear):
        def get_extra_state(self) -> torch.Tensor:
            return torch.ones(2)

        def set_extra_state(self, state: torch.Tensor) -> None:
            pass

    def cast(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
        state["weight"] = state["weight"].to(torch.float64)

    casts = nn.Linear(2, 3)
    casts.register_state_dict_post_hook(cast)  # type: ignore[no-untyped-call]
    for module, name in ((casts, "weight"), (Counts(2, 3), "_extra_state")):
        with slackline.Publisher(slackline.torch.table(module)) as publisher:
            slackline.torch.publish(publisher, {key: torch.zeros_like(one) for key, one in module.state_dict().items()})
            before = {key: tensor.clone() for key, tensor in module.named_parameters()}
            with pytest.raises(slackline.LayoutMismatch, match=f"has in '{name}' neither") as caught:
                slackline.torch.pull(slackline.Reader(publisher.address), module)
            assert caught.value.operation and caught.value.remedy
            torch.testing.assert_close(dict(module.named_parameters()), before, rtol=0, atol=0)


def test_parameters_that_are_shared_or_handed_out_in_part_are_written() -> None:
    def crop(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
        state["0.weight"] = state["0.weight"][:2]

    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    module.register_state_dict_post_hook(crop)  # type: ignore[no-untyped-call]
    given = {"0.weight": torch.ones(2, 3), "1.weight": torch.ones(3, 3)}
    with slackline.Publisher(given) as publisher:
        publisher.publish(given)
        slackline.torch.pull(slackline.Reader(publisher.address), module)
    assert module[0].get_parameter("weight").eq(1).all()


def test_a_type_that_torch_lacks_or_cannot_convert_is_refused_before_any_tensor_is_written() -> None:
    packed = torch.empty(2, dtype=torch.float4_e2m1fn_x2)
    for dtype, target in (("float8_e3m4", torch.zeros(2)), ("float32", packed)):
        table = [slackline.TensorSpec("a", "float32", (3,)), slackline.TensorSpec("b", dtype, (2,))]
        state = {"a": torch.ones(3), "b": target}
        with slackline.Publisher(table) as publisher, slackline.Reader(publisher.address) as reader:
            with pytest.raises(slackline.LayoutMismatch, match=f"cannot copy 'b', which is {dtype} in the table"):
                slackline.torch.pull(reader, state)
        assert state["a"].tolist() == [1.0] * 3


def test_a_tensor_of_inference_mode_is_refused_outside_of_it_before_any_other_is_written() -> None:
    given = {"a": torch.ones(3), "b": torch.ones(3)}
    with torch.inference_mode():
        state = {"b": torch.zeros(3)}
    state = {"a": torch.zeros(3), **state}
    with slackline.Publisher(given) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(given)
        with pytest.raises(slackline.LayoutMismatch, match="made in inference mode"):
            slackline.torch.pull(reader, state)
        assert state["a"].tolist() == [0.0] * 3
        with torch.inference_mode():
            slackline.torch.pull(reader, state)
    assert state["b"].tolist() == [1.0] * 3


def test_tensors_without_elements_may_be_in_the_table_and_in_the_state_or_in_one_of_them() -> None:
    module = nn.Linear(2, 3)
    module.register_buffer("none", torch.empty(0, 4))
    full = module.state_dict()
    for table in (full, slackline.torch.table(module)):
        with slackline.Publisher(table) as publisher, slackline.Reader(publisher.address) as reader:
            for state in (module, {name: full[name] for name in ("weight", "bias")}):
                slackline.torch.publish(publisher, state)
                slackline.torch.pull(reader, state)
            with pytest.raises(slackline.LayoutMismatch):
                slackline.torch.pull(reader, {**full, "none": torch.ones(1, 4)})


def test_a_module_with_a_parameter_without_elements_is_trained_and_loaded() -> None:
    module = nn.Linear(2, 1, bias=False)
    module.none = nn.Parameter(torch.empty(0))
    with slackline.Server(slackline.torch.parameters(module), learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:
            slackline.torch.Worker(module, worker).step(lambda: module(torch.ones(1, 2)).sum())
            state = module.state_dict()
            with worker.step() as step:
                slackline.torch.load(step.parameters, {name: state[name] for name in step.parameters})


def test_a_model_of_bfloat16_acts_on_weights_of_float32() -> None:
    trained, acting = model(1), model(2, torch.bfloat16)
    with slackline.Publisher(slackline.torch.table(trained)) as publisher:
        slackline.torch.publish(publisher, trained)
        slackline.torch.pull(slackline.Reader(publisher.address), acting)
    assert same(acting[0].weight, trained[0].weight.to(torch.bfloat16))  # type: ignore[index]


WORKER = """
import json, torch, slackline, slackline.torch
from torch import nn
torch.manual_seed(1)
module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
module[2].bias.requires_grad_(False)
generator = torch.Generator().manual_seed(5)
with slackline.Worker([address], rank=rank) as worker:
    training = slackline.torch.Worker(module, worker)
    for _ in range(20):
        x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)
        half = slice(4 * rank, 4 * rank + 4)
        def closure():
            loss = nn.functional.mse_loss(module(x[half]), y[half])
            loss.backward()
            return loss
        training.step(closure)
        assert training.staleness == 0
    worker.flush()
print("done")
"""


def test_workers_under_bsp_train_a_module_as_one_process_does(transport: str, python: Any) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    module[2].bias.requires_grad_(False)
    initial = slackline.torch.parameters(module)
    assert list(initial) == ["0.weight", "0.bias", "2.weight"]
    options: dict[str, Any] = {"scheme": "bsp", "learning_rate": 0.1, "momentum": 0.9, "transport": transport}
    with slackline.Server(initial, workers=2, **options) as server:
        children = [python(WORKER, address=server.address, rank=rank) for rank in range(2)]
        assert [child.stdout.readline() for child in children] == ["done\n", "done\n"]
        server.wait(left=2)
        found = slackline.torch.state_dict(server.parameters())
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(5)
    for _ in range(20):
        x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.testing.assert_close(found, slackline.torch.parameters(module), rtol=0, atol=1e-6)


def test_a_closure_that_raises_publishes_nothing_and_the_clock_is_begun_again() -> None:
    module = nn.Linear(2, 1, bias=False)
    with slackline.Server({"weight": torch.ones(1, 2)}, learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:
            training = slackline.torch.Worker(module, worker)

            def fails() -> torch.Tensor:
                raise MemoryError

            def closure() -> torch.Tensor:
                loss = module(torch.ones(1, 2)).sum()
                loss.backward()
                return loss  # type: ignore[no-any-return]

            with pytest.raises(MemoryError):
                training.step(fails)
            assert worker.clock == 0
            assert float(training.step(closure).detach()) == 2.0
            worker.flush()
            assert server.parameters()["weight"].torch().tolist() == [[0.0, 0.0]]
            with pytest.raises(slackline.LayoutMismatch):
                slackline.torch.Worker(nn.Linear(2, 1), worker)


def test_a_closure_may_return_a_number_and_have_sparse_gradients() -> None:
    module = nn.Embedding(3, 2, sparse=True)
    with slackline.Server({"weight": torch.ones(3, 2)}, learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:

            def closure() -> float:
                loss = module(torch.tensor([1, 1])).sum()
                loss.backward()
                return float(loss.detach())

            assert slackline.torch.Worker(module, worker).step(closure) == 4.0
            worker.flush()
            assert server.status.loss == 4.0
        assert server.parameters()["weight"].torch().tolist() == [[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]]


SERVER = """
server = slackline.Server({"weight": np.full((1, 2), 8, "float32")}, learning_rate=1.0, transport="tcp")
print(server.address)
sys.stdin.readline()
print(server.parameters()["weight"].numpy().tolist())
"""


def test_a_gradient_whose_publication_was_late_counts_once_and_the_next_step_has_the_next_clock(python: Any) -> None:
    child, module = python(SERVER), nn.Linear(2, 1, bias=False)

    def closure() -> torch.Tensor:
        loss = module(torch.ones(1, 2)).sum()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    def stops_the_server() -> torch.Tensor:
        child.send_signal(signal.SIGSTOP)
        return closure()

    with slackline.Worker([child.stdout.readline().strip()]) as worker:
        training = slackline.torch.Worker(module, worker)
        with pytest.raises(slackline.DeadlineError) as caught:
            training.step(stops_the_server, timeout=1.0)
        assert caught.value.operation == "publishing a gradient"
        child.send_signal(signal.SIGCONT)
        assert float(training.step(closure).detach()) == 14.0 and worker.clock == 2
        worker.flush()
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "[[6.0, 6.0]]\n"


def test_a_publication_is_of_the_bytes_of_the_state() -> None:
    state = {"w": torch.arange(6, dtype=torch.bfloat16)}
    with slackline.Publisher(slackline.torch.table(state)) as publisher:
        frame = slackline.torch.publish(publisher, state, recorded=True)
        assert frame.publication is not None
        assert set(json.loads(frame.publication)["publication"]["digests"]) == {"w"}


PAGE = (Path(__file__).parents[3] / "docs" / "torch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_each_program_of_the_page_runs_as_it_stands(block: int) -> None:
    command = [sys.executable, "-c", BLOCKS[block]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)$", BLOCKS[block], re.MULTILINE)
