"""Slackline, as the table of peers uses it, and files."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from contender import PATIENCE, Array, Contender, until


class Slackline(Contender):
    packages = ("slackline",)

    def start(self) -> Any:
        import slackline

        self.publisher = slackline.Publisher([slackline.TensorSpec("w", "uint64", (self.elements,))], frames=3)
        return self.publisher.address

    def publish(self, array: Array, version: int) -> None:
        self.publisher.publish({"w": array}, timeout=PATIENCE)

    def connect(self, address: Any, rank: int) -> None:
        import slackline

        self.reader = slackline.Reader(address)

    def receive(self, version: int) -> Array:
        self.snapshot = None
        self.snapshot = self.reader.pull(min_version=version, timeout=PATIENCE)
        array: Array = self.snapshot["w"].numpy()
        return array


class SlacklineSwap(Slackline):
    held = 2.0

    def stage(self, version: int) -> None:
        self.reader.prefetch(min_version=version, timeout=PATIENCE)
        time.sleep(0.05 + self.size / 2e9)

    def receive(self, version: int) -> Array:
        import slackline

        try:
            self.next = self.reader.swap(timeout=PATIENCE)
        except slackline.OutOfTurn:
            self.reader.prefetch(min_version=version, timeout=PATIENCE)
            self.next = self.reader.swap(timeout=PATIENCE)
        array: Array = self.next["w"].numpy()
        return array


class SlacklinePin(Slackline):
    held = 0.0
    serves = 4.0

    def connect(self, address: Any, rank: int) -> None:
        super().connect(address, rank)
        self.pins = contextlib.ExitStack()

    def release(self) -> None:
        self.pins.close()

    def receive(self, version: int) -> Array:
        self.release()
        array: Array = self.pins.enter_context(self.reader.pin(min_version=version, timeout=PATIENCE))["w"].numpy()
        return array


class FileRenamed(Contender):
    """Each version is a new file, which replaces the one before; readers map it."""

    held = 0.0
    serves = 3.0

    def start(self) -> Any:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        return self.folder.name

    def publish(self, array: Array, version: int) -> None:
        array.tofile(f"{self.folder.name}/next")
        os.rename(f"{self.folder.name}/next", f"{self.folder.name}/weights")

    def connect(self, address: Any, rank: int) -> None:
        self.path = Path(address) / "weights"

    def receive(self, version: int) -> Array:
        found: list[Array] = []

        def newest() -> bool:
            if self.path.exists():
                with self.path.open("rb") as file:
                    found[:] = [np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), "uint64")]
            return bool(found) and len(found[0]) == self.elements and bool(found[0][-1] >= version)

        until(newest)
        return found[0]

    def unmapped(self) -> int:
        return self.size

    def close(self) -> None:
        self.folder.cleanup()


class FileOverwritten(FileRenamed):
    """Each version is written over the one before, and readers copy the file."""

    held = 1.0

    def publish(self, array: Array, version: int) -> None:
        with open(f"{self.folder.name}/weights", "r+b" if version > 1 else "wb") as file:
            array.tofile(file)

    def receive(self, version: int) -> Array:
        found: list[Array] = []

        def newest() -> bool:
            if self.path.exists() and self.path.stat().st_size == self.size:
                with self.path.open("rb") as file:
                    file.seek(-8, os.SEEK_END)
                    if int.from_bytes(file.read(8), "little") >= version:
                        found[:] = [np.fromfile(self.path, "uint64")]
            return bool(found)

        until(newest)
        return found[0]
