"""A checkpoint transport of torchft: replicas that come back read the state of one that goes on, whole and of one step.

    from slackline.integrations.torchft import SlacklineTransport

    manager = torchft.Manager(..., checkpoint_transport=SlacklineTransport(timeout=timedelta(seconds=60)))

`SlacklineTransport(address="0.0.0.0:0", secret=...)` serves replicas on other hosts. A state with sharded tensors
(DTensor) needs `state_dict=lambda: ...`, which returns the local state: what is received is written into it.

The state is copied when it is sent, so that the step that follows may change it at once. The copy is given back with
the first `disallow_checkpoint` after its timeout, when no replica waits for it any more. Nothing is pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torchft.checkpointing.transport import CheckpointTransport

from slackline import DeadlineError

from . import _torch
from ._served import Overtaken, Sink, Source

__all__ = ["SlacklineTransport"]

T = TypeVar("T")


class SlacklineTransport(CheckpointTransport[T]):
    """Serves the state of a step to the replicas that ask for it. The options are those of `slackline.Publisher`."""

    def __init__(
        self,
        timeout: timedelta = timedelta(seconds=60),
        *,
        state_dict: Callable[[], object] | None = None,
        **options: Any,
    ) -> None:
        self._timeout = timeout
        self._template = state_dict
        self._secret = options.get("secret")
        self._source = Source(options)
        self._until = 0.0

    def metadata(self) -> str:
        return self._source.address

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: T, timeout: timedelta) -> None:
        tree, tensors = _torch.flatten(state_dict)
        table = {_torch.TREE: _torch.text(tree)}
        table.update((str(index), tensor) for index, tensor in enumerate(tensors))
        seconds = max(timeout, self._timeout).total_seconds()
        self._source.publish(table, step, seconds)
        self._until = time.monotonic() + seconds

    def disallow_checkpoint(self) -> None:
        # What was sent is a copy, so the state may change: there is no receiver to wait for, and none is cut off.
        if time.monotonic() >= self._until:
            self._source.drop()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        until = time.monotonic() + timeout.total_seconds()
        try:
            sink = Sink(metadata, self._secret, timeout.total_seconds())
            try:
                snapshot = sink.pull(step, max(0.0, until - time.monotonic()))
            finally:
                sink.close()
        except DeadlineError as error:
            raise TimeoutError(f"timed out: rank {src_rank} has sent no state of step {step}") from error
        except Overtaken as error:
            raise RuntimeError(f"rank {src_rank} serves no state of step {step} any more: {error}") from error
        template = None if self._template is None else self._template()
        state: T = _torch.rebuild(_torch.value(snapshot), lambda index: snapshot[str(index)].torch(), template)
        return state

    def shutdown(self, wait: bool = True) -> None:
        self._source.close()
