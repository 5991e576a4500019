"""What each contender of the table of peers does: one process publishes an array, and others receive it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.uint64]]

PATIENCE = 30.0
"""Seconds after which a wait is given up."""


class Late(Exception):
    """A version did not come."""


def raw(array: Any) -> memoryview:
    """The bytes of an array."""
    return memoryview(array).cast("B")


def until(condition: Callable[[], bool], pause: float = 0.0002) -> None:
    """Asks until it is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise Late
        time.sleep(pause)


class Contender:
    """One way to hand versions of an array over. `size` is in bytes."""

    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    """Modules that take long to import: the readers of a cell import them together."""
    is_collective = False
    """Publisher and readers have to make each call together."""
    held = 1.0
    """Arrays in each reader, and those in the publisher: what has to fit in memory."""
    serves = 2.0

    def __init__(self, size: int, readers: int) -> None:
        self.size, self.readers, self.elements = size, readers, size // 8

    def start(self) -> Any:
        """In the publisher: returns what readers need to connect."""

    def started(self) -> None:
        """In the publisher, when the readers have been started."""

    def publish(self, array: Array, version: int) -> None:
        raise NotImplementedError

    def connect(self, address: Any, rank: int) -> None:
        """In a reader."""
        raise NotImplementedError

    def stage(self, version: int) -> None:
        """In a reader: brings a version that is published, where the library can do that ahead of its use."""

    def receive(self, version: int) -> Array:
        """In a reader: this version or a newer one, once it is there."""
        raise NotImplementedError

    def release(self) -> None:
        """In a reader: lets go of what it has received last, where the publisher would wait for that."""

    def unmapped(self) -> int:
        """Bytes that are held and belong to no process."""
        return 0

    def close(self) -> None:
        """In the publisher."""
