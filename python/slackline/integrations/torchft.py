"""A checkpoint transport of torchft: replicas that come back read the state of one that goes on, whole and of one step.

    from slackline.integrations.torchft import SlacklineTransport

    manager = torchft.Manager(..., checkpoint_transport=SlacklineTransport(timeout=timedelta(seconds=60)))

`SlacklineTransport(address="0.0.0.0:0", transport="tcp", secret=...)` serves replicas on other hosts. A state with sharded
tensors (DTensor) needs `state_dict=lambda: ...`, which returns the local state: what is received is written into it.

The state is copied when it is sent, so that the step that follows may change it at once. The copy is given back with the first
`disallow_checkpoint` after its timeout, when no replica waits for it any more. Nothing is pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torchft.checkpointing.transport import CheckpointTransport

from slackline import DeadlineError, Publisher, Reader, TensorSpec

from . import _torch

__all__ = ["SlacklineTransport"]

T = TypeVar("T")

_NOTE = 1024
"""The most bytes of the note that says where the state of a step is."""


class SlacklineTransport(CheckpointTransport[T]):
    """Serves the state of a step to the replicas that ask for that step. The options are those of `slackline.Publisher`."""

    def __init__(
        self,
        timeout: timedelta = timedelta(seconds=60),
        *,
        state_dict: Callable[[], object] | None = None,
        **options: Any,
    ) -> None:
        self._timeout = timeout.total_seconds()
        self._template = state_dict
        self._options = options
        # torchft asks for the address before there is a state, and a table cannot change: this one says where each state is.
        self._notes = Publisher([TensorSpec("note", "uint8", (_NOTE,))], **options)
        self._states: Publisher | None = None
        self._until = 0.0

    def metadata(self) -> str:
        return self._notes.address

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: T, timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        tree, tensors = _torch.flatten(state_dict)
        table = {_torch.TREE: _torch.text(tree)}
        table.update((str(index), _torch.host(tensor)) for index, tensor in enumerate(tensors))
        self._drop()
        options = {key: value for key, value in self._options.items() if key != "address"} | self._beside()
        options.pop("frames", None)
        self._states = Publisher(table, frames=2, **options)
        self._states.publish(table, step=step, timeout=seconds)
        self._until = time.monotonic() + seconds
        note = torch.zeros(_NOTE, dtype=torch.uint8)
        text = _torch.text({"step": step, "address": self._states.address})
        note[: len(text)] = text
        self._notes.publish({"note": note}, step=step, timeout=seconds)

    def disallow_checkpoint(self) -> None:
        # What was sent is a copy, so the state may change: nobody has to be waited for, and nobody is cut off.
        if self._states is not None and time.monotonic() >= self._until:
            self._drop()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        until = time.monotonic() + timeout.total_seconds()

        def left() -> float:
            return max(0.0, until - time.monotonic())

        secret = self._options.get("secret")
        try:
            with Reader(metadata, timeout=max(left(), 0.001), secret=secret) as notes:
                seen = 0
                while (note := notes.pull(min_version=seen + 1, timeout=left())).step != step:
                    seen = note.version
                where = _torch.value(note, "note")
            with Reader(where["address"], timeout=left(), secret=secret) as reader:
                snapshot = reader.pull(min_version=1, timeout=left())
        except DeadlineError as error:
            raise TimeoutError(f"timed out: rank {src_rank} has sent no state of step {step}") from error
        if snapshot.step != step:
            raise RuntimeError(f"rank {src_rank} has the state of step {snapshot.step}, and step {step} is needed")
        template = None if self._template is None else self._template()
        tree = _torch.value(snapshot)
        state: T = _torch.rebuild(tree, lambda index: snapshot[str(index)].torch(), template)
        return state

    def shutdown(self, wait: bool = True) -> None:
        self._drop()
        self._notes.close()

    def _beside(self) -> dict[str, str]:
        """An address for the state on the same host as the notes, at a port of its own."""
        address = self._options.get("address")
        return {"address": f"{address.rpartition(':')[0]}:0"} if address and not address.startswith("@") else {}

    def _drop(self) -> None:
        if self._states is not None:
            self._states.close()
            self._states = None
