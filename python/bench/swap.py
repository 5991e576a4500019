"""How long a program stands still when it goes on to the next version: `Reader.swap`, at several sizes.

    python swap.py                # 1, 64 and 512 MiB, about five minutes
    python swap.py 1 1024         # MiB

A thread of the library brings each version while the program computes; what is timed is `snapshot = reader.swap(...)`,
the end of the snapshot before with it. The program tries after every 2 ms of its own work, as one does that acts with
the weights that it has until the next are there. An attempt that comes too early raises, and is not counted.

Then the same of a program that was asleep instead: after a sleep every call is slow, because the processor slept or
other programs had its caches. A call that does nothing, timed likewise, says how much of the time is the machine's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import machine
import numpy as np

import slackline

MIB = 1 << 20
ROUNDS = {1: 300, 64: 150}
FEWER_ROUNDS = 100
PATIENCE = 60.0

WORK = np.random.default_rng(0).random((192, 192), "float32")
"""Products of it are the program's own work: about what a small policy does for a batch."""


def compute(seconds: float = 0.002) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        WORK @ WORK


def nothing() -> None:
    pass


class Program:
    """A program that acts by the newest weights, with a trainer that publishes them."""

    def __init__(self, mib: int) -> None:
        self.size = mib * MIB
        self.array = np.zeros(self.size, "uint8")
        self.publisher = slackline.Publisher([slackline.TensorSpec("w", "uint8", (self.size,))], frames=3)
        self.reader = slackline.Reader(self.publisher.address)
        self.snapshot: Any = None

    def close(self) -> None:
        self.snapshot = None
        self.reader.close()
        self.publisher.close()

    def swap(self, before: Callable[[], None]) -> int:
        """The nanoseconds of the swap of one version more, `before` being what the program does before each attempt."""
        version = self.publisher.publish({"w": self.array}, timeout=PATIENCE)
        reader, clock = self.reader, time.perf_counter_ns
        reader.prefetch(min_version=version, timeout=PATIENCE)
        while True:
            before()
            begun = clock()
            try:
                self.snapshot = reader.swap(timeout=0)
            except slackline.DeadlineError:
                continue
            return clock() - begun

    def sleep(self) -> None:
        time.sleep(0.01 + self.size / 2e9)

    def call_nothing(self, before: Callable[[], None]) -> int:
        """The nanoseconds of a call that does nothing, likewise."""
        clock = time.perf_counter_ns
        self.publisher.publish({"w": self.array}, timeout=PATIENCE)
        before()
        begun = clock()
        nothing()
        return clock() - begun


def measure(mib: int) -> list[str]:
    """A row of the table: medians and 99th percentiles, in microseconds."""
    program = Program(mib)
    rounds = ROUNDS.get(mib, FEWER_ROUNDS)
    for _ in range(5):  # until all memory that is used again and again is there
        program.swap(compute)
    row = [str(mib)]
    for before in (compute, program.sleep):
        for call in (program.swap, program.call_nothing):
            times = [call(before) / 1e3 for _ in range(rounds)]
            row.append(f"{np.median(times):.1f}, {np.percentile(times, 99):.1f}")
    program.close()
    return row


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [1, 64, 512]
    about = machine.record("swap", ["slackline", "numpy"])
    print(about["machine"], about["packages"], "load", round(about["load_before"], 1), end="\n\n")
    print("Median and 99th percentile, in microseconds:\n")
    print("| MiB | swap | empty call | swap after a sleep | empty call after a sleep |")
    print("| - | - | - | - | - |")
    for mib in sizes:
        print("| " + " | ".join(measure(mib)) + " |", flush=True)


if __name__ == "__main__":
    main()
