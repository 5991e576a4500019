"""States of torch that one process serves step by step, whatever their tables: for torchft, verl and vLLM."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from slackline import DeadlineError, EpochChanged, Error, PeerGone, Publisher, Reader, Snapshot, TensorSpec

from ._hosts import beside, reachable
from ._torch import host, text, value

_NOTE = 1024
"""The most bytes of the note that says where the state of a step is."""

_CONNECT = 2.0
"""The longest time in seconds for which the publisher of a state is asked for, before the note is read again."""

_STAYS = 1.0
"""The longest time in seconds for which a source may still turn out to be gone that has a later step than the one asked
for. The source that comes after it may have that step."""


class Source:
    """Serves the newest state, at an address that is there before any state. The options are those of `Publisher`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        # Each rollout keeps a reader at either publisher.
        self._options = {"readers": 1024, **options, "frames": 2}
        # The address is asked for before there is a state, and a table cannot change: this one says where a state is.
        self._notes = Publisher([TensorSpec("note", "uint8", (_NOTE,))], **self._options)
        self._states: Publisher | None = None
        self._layout: list[tuple[str, torch.dtype, torch.Size]] = []

    @property
    def address(self) -> str:
        return reachable(self._notes.address)

    @property
    def serves(self) -> bool:
        """Whether a state is held."""
        return self._states is not None

    def publish(self, tensors: Mapping[str, torch.Tensor], step: int, timeout: float) -> None:
        """Copies a state, and serves it as that of a step, instead of the one before."""
        layout = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        arrays = {name: host(tensor) for name, tensor in tensors.items()}
        if self._states is None or layout != self._layout:
            self.drop()
            options = dict(self._options)
            if options.get("address") is not None:
                options["address"] = beside(options["address"])
            self._states, self._layout = Publisher(arrays, **options), layout
        version = self._states.publish(arrays, step=step, timeout=timeout)
        # A table that changes has another publisher, which may have the address of the one before.
        where = {"address": reachable(self._states.address), "epoch": self._states.epoch, "version": version}
        words = text({"step": step, **where})
        note = torch.zeros(_NOTE, dtype=torch.uint8, device="cpu")
        note[: len(words)] = words
        self._notes.publish({"note": note}, step=step, timeout=timeout)

    def drop(self) -> None:
        """Gives the memory of the state back."""
        if self._states is not None:
            self._states.close()
            self._states = None

    def close(self) -> None:
        self.drop()
        self._notes.close()


class Sink:
    """Reads the states of a source. The readers stay connected from one state to the next, and connect again after a
    loss: of the network, or since this process was stopped for longer than the lease."""

    def __init__(self, address: str, secret: Any, timeout: float) -> None:
        self._secret = secret
        self._notes = Reader(address, secret=secret, timeout=timeout)
        self._states: Reader | None = None
        # The last note that was read, and the source that wrote it.
        self._seen, self._epoch = 0, self._notes.epoch

    def pull(self, step: int | None, timeout: float) -> Snapshot:
        """The state of a step, for which it waits; without a step, the next one that has not been read."""
        until = time.monotonic() + timeout

        def left() -> float:
            return max(0.0, until - time.monotonic())

        # A step may be read again; a step that is awaited comes with a later note.
        note = self._note(1 if step is not None else self._seen + 1, left)
        while step is not None and note.step != step:
            stays = _STAYS if note.step > step else None
            try:
                note = self._note(note.version + 1, left, stays)
            except DeadlineError:
                if stays is None or left() == 0:
                    raise
                # The steps of one source only rise: this one comes no more.
                raise Overtaken(f"the state of step {step} has given way to that of step {note.step}") from None
        while True:
            where = value(note, "note")
            try:
                snapshot = self._read(where["address"], where["epoch"], where["version"], left)
                break
            except Overtaken:
                if step is not None:
                    raise
                note = self._note(note.version + 1, left)
            except (PeerGone, DeadlineError):
                if left() == 0:
                    raise
                # Its publisher may have given way to the next one, at another address.
                newer = self._note(1, left)
                if step is not None and newer.step != step:
                    raise Overtaken(f"the state of step {note.step} has given way to that of step {newer.step}") from None
                note = newer
        if snapshot.step != note.step:
            raise Overtaken(f"the state of step {note.step} has given way to that of step {snapshot.step}")
        self._seen = note.version
        return snapshot

    def _note(self, at_least: int, left: Callable[[], float], stays: float | None = None) -> Snapshot:
        """The newest note, at least of this version unless another source has come at the address. It is waited for no
        longer than `stays` while the source is the same."""
        while True:
            if self._notes.epoch != self._epoch:
                self._seen, self._epoch, at_least, stays = 0, self._notes.epoch, 1, None
            try:
                return self._notes.pull(min_version=at_least, timeout=min(stays or left(), left()))
            except (PeerGone, EpochChanged):
                if left() == 0:
                    raise
            # Within the time that is left, or the loss is told by the next call.
            self._notes.reconnect(timeout=left())

    def _read(self, address: str, epoch: int, version: int, left: Callable[[], float]) -> Snapshot:
        for kept in (True, False):
            there = None if self._states is None else (self._states.address, self._states.epoch)
            if self._states is None or there != (address, epoch) or not kept:
                before, self._states = self._states, None
                if before is not None:
                    before.close()
                # Not for longer: the state may be elsewhere by then.
                self._states = Reader(address, secret=self._secret, timeout=min(_CONNECT, left()))
                if self._states.epoch != epoch:
                    raise Overtaken(f"the states of epoch {epoch} have given way to those of another publisher")
            try:
                return self._states.pull(min_version=version, timeout=left())
            except PeerGone:
                if not kept:
                    raise
        raise AssertionError

    def close(self) -> None:
        for reader in (self._notes, self._states):
            if reader is not None:
                reader.close()


class Overtaken(Error):
    """The state was asked for after the next one had been published."""
