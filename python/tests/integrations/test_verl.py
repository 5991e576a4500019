"""The checkpoint engine of verl, with verl: its registry, and the calls of its manager in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

NEEDS = "verl is not installed: `cargo xtask wheel --integrations` installs it"
base: Any = pytest.importorskip("verl.checkpoint_engine.base", reason=NEEDS, exc_type=ImportError)

import torch

import slackline.integrations.verl  # as `custom_backend_module` imports it

RANKS, ROLLOUTS = 2, 3


def weights(number: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight in the same memory, as an engine that gathers one after the other yields them."""
    memory = torch.empty(1000, dtype=torch.bfloat16)
    for layer in range(4):
        yield f"layers.{layer}.weight", memory.fill_(number * 10 + layer).view(10, 100)
    yield "steps", torch.tensor(number)


def make(options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    def new(**more: Any) -> Any:
        return base.CheckpointEngineRegistry.new("slackline", bucket_size=1 << 20, timeout=30.0, **options, **more)

    return [new(is_master=rank == 0) for rank in range(RANKS)], [new() for _ in range(ROLLOUTS)]


async def update(
    trainers: list[Any], rollouts: list[Any], step: int | None, number: int
) -> list[dict[str, torch.Tensor]]:
    """The calls of verl's CheckpointEngineManager.update_weights."""
    metadata = [engine.prepare() for engine in trainers + rollouts]
    topology = base.CheckpointEngineRegistry.get("slackline").build_topology(len(trainers), len(rollouts), metadata)
    for engines, arguments in zip((trainers, rollouts), topology, strict=True):
        for index, engine in enumerate(engines):
            engine.init_process_group(**{name: values[index] for name, values in arguments.items()})

    async def receive(engine: Any) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() async for name, tensor in engine.receive_weights(global_steps=step)}

    sends = [engine.send_weights(weights(number), global_steps=step) for engine in trainers]
    *found, first, second = await asyncio.gather(*map(receive, rollouts), *sends)
    assert isinstance(first, dict) and isinstance(second, dict)
    for engine in trainers + rollouts:
        engine.finalize()
    return found


def check(found: dict[str, torch.Tensor], number: int) -> None:
    assert list(found) == [f"layers.{layer}.weight" for layer in range(4)] + ["steps"]
    for layer in range(4):
        weight = found[f"layers.{layer}.weight"]
        assert weight.dtype == torch.bfloat16 and weight.shape == (10, 100) and (weight == number * 10 + layer).all()
    assert found["steps"] == number


@pytest.mark.parametrize("numbered", [True, False])
def test_each_rollout_receives_the_weights_of_the_step(transport: str, numbered: bool) -> None:
    trainers, rollouts = make({"transport": transport})
    for number in (1, 2, 3):
        for found in asyncio.run(update(trainers, rollouts, number * 7 if numbered else None, number)):
            check(found, number)


@pytest.mark.parametrize("steps", [(1, 2, 3), (None, None, None), (5, 5, 5)])
def test_rollouts_may_come_and_go_between_updates(steps: tuple[int | None, ...]) -> None:
    trainers, rollouts = make({})
    asyncio.run(update(trainers, rollouts, steps[0], 1))
    _more, others = make({})
    for found in asyncio.run(update(trainers, [rollouts[0], *others], steps[1], 2)):
        check(found, 2)
    # One that has missed an update gets this one.
    for found in asyncio.run(update(trainers, rollouts, steps[2], 3)):
        check(found, 3)


def test_the_last_weights_can_be_had_again() -> None:
    trainers, rollouts = make({})
    asyncio.run(update(trainers, rollouts, 1, 1))

    async def again() -> dict[str, torch.Tensor]:
        return {name: tensor async for name, tensor in rollouts[0].get_weights()}

    check(asyncio.run(again()), 1)


def test_the_engine_is_one_of_verls() -> None:
    assert issubclass(slackline.integrations.verl.SlacklineCheckpointEngine, base.CheckpointEngine)
    assert slackline.integrations.verl.SlacklineCheckpointEngine.wire_format == "named_tensors"
