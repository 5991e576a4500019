"""`slackline.torch`, with torch: models published, pulled and trained."""

from __future__ import annotations

import json
import re
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
