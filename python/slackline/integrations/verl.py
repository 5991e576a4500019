"""A checkpoint engine of verl: rollouts read the weights that the trainer has published, each at its own pace.

    actor_rollout_ref.rollout.checkpoint_engine.backend=slackline
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=slackline.integrations.verl
    # between hosts, with a secret in the environment of all:
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.slackline.address=0.0.0.0:0

The first rank of the trainer gathers the weights in memory of the host and publishes them as one version; no process
group is built, and a rollout that is lost or added changes nothing for the others. A rollout loads a version that it
has whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache

from slackline import Snapshot

from ._served import Sink, Source

__all__ = ["SlacklineCheckpointEngine"]


@CheckpointEngineRegistry.register("slackline")
class SlacklineCheckpointEngine(CheckpointEngineWithCache):  # type: ignore[misc, unused-ignore]
    """The options are those of `slackline.Publisher`."""

    def __init__(self, bucket_size: int = 0, is_master: bool = False, timeout: float = 600.0, **options: Any) -> None:
        self._is_master = is_master
        self._timeout = timeout
        self._options = options
        self._source: Source | None = None
        self._address, self._round = "", 0
        self._sink: tuple[str, Sink] | None = None
        self._kept: Snapshot | None = None
        self._rounds = 0

    def prepare(self) -> dict[str, Any]:
        if self._is_master and self._source is None:
            self._source = Source(self._options)
        # Numbers of steps may be missing or come twice: the master numbers the rounds.
        return {"address": None if self._source is None else self._source.address, "round": self._rounds + 1}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        masters = [one for one in metadata if one["address"] is not None]
        if len(masters) != 1:
            raise ValueError(f"one rank of the trainer publishes, and {len(masters)} would")
        of_all = {name: [masters[0][name]] for name in ("address", "round")}
        sizes = (actor_wg_world_size, rollout_world_size)
        trainer, rollouts = ({name: found * size for name, found in of_all.items()} for size in sizes)
        return trainer, rollouts

    def init_process_group(self, **arguments: Any) -> None:
        self._address, self._round = arguments["address"], arguments["round"]

    def finalize(self) -> None:
        """Nothing: connections and memory stay for the next round."""

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, Any]:
        tensors: dict[str, torch.Tensor] = {}
        # Each rank goes through the weights, since gathering them is collective work.
        async for name, weight in _each(weights):
            if self._source is not None:
                # What yields the weights may use their memory again.
                tensors[name] = weight.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        if self._source is not None:
            self._rounds = self._round
            await asyncio.to_thread(self._source.publish, tensors, self._round, self._timeout)
        return {}

    # verl iterates over what these yield, and annotates them as coroutines.
    async def receive_weights(  # type: ignore[override, unused-ignore]
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        self._kept = await asyncio.to_thread(self._pull, self._round)
        async for pair in self.get_weights():
            yield pair

    async def get_weights(  # type: ignore[override, unused-ignore]
        self,
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """The version that was received last."""
        snapshot = self._kept
        if snapshot is None:
            raise RuntimeError("no weights have been received yet")
        for name in snapshot:
            yield name, snapshot[name].torch()

    def _pull(self, number: int) -> Snapshot:
        if self._sink is None or self._sink[0] != self._address:
            if self._sink is not None:
                self._sink[1].close()
            self._sink = self._address, Sink(self._address, self._options.get("secret"), self._timeout)
        return self._sink[1].pull(number, self._timeout)


async def _each(weights: Any) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
    if hasattr(weights, "__aiter__"):
        async for pair in weights:
            yield pair
    else:
        for pair in weights:
            yield pair
