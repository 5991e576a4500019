"""What Python adds to a read: `Reader.pull` into an array and `Reader.latest`, beside the same calls in Rust.

    cargo bench --bench weights --no-run     # prints the path of the program in Rust
    python overhead.py target/release/deps/weights-...

A publisher that publishes nothing more serves one reader after the other, by turns in Rust and in Python, each in a
process of its own. A table of 4 KiB has one tensor, as one of 64 MiB.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import machine
import numpy as np

import slackline

KIB = 1 << 10
PULLS = {4 * KIB: 20_000, 64 << 20: 60}
LOOKS = 20_000
PAIRS = 9
MOST_OF_LARGE = 1.05
MOST_OF_SMALL_US = 3.0


def read(address: str, pulls: int) -> None:
    """The reader in Python: prints the median nanoseconds of a pull and of a look, as a line of JSON."""
    clock = time.perf_counter_ns
    with slackline.Reader(address) as reader:
        into = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in reader.metadata}
        pulling, looking = [], []
        for _ in range(pulls):
            begun = clock()
            reader.pull(into, max_staleness=0)
            pulling.append(clock() - begun)
        for _ in range(LOOKS):
            begun = clock()
            reader.latest()
            looking.append(clock() - begun)
    print(json.dumps({"pull_ns": statistics.median(pulling), "look_ns": statistics.median(looking)}))


def ran(*command: str) -> dict[str, float]:
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def main(rust: str) -> None:
    print(json.dumps(machine.record("overhead", ["numpy"])["machine"]))
    print("| bytes | call | Rust, us | Python, us | Python / Rust, of pairs | Python - Rust, us | target |")
    print("| - | - | - | - | - | - | - |")
    for size, pulls in PULLS.items():
        with slackline.Publisher([slackline.TensorSpec("w", "uint8", (size,))]) as publisher:
            publisher.publish({"w": np.ones(size, "uint8")})
            pairs: list[tuple[Any, Any]] = []
            for _ in range(PAIRS):
                in_rust = ran(rust, "times", publisher.address, str(pulls))
                pairs.append((in_rust, ran(sys.executable, __file__, "--read", publisher.address, str(pulls))))
        for call, name in [("pull_ns", "pull(into)"), ("look_ns", "latest")]:
            ours, theirs = ([pair[side][call] / 1e3 for pair in pairs] for side in (0, 1))
            ratios = sorted(python / rust for rust, python in zip(ours, theirs, strict=True))
            adds = statistics.median(python - rust for rust, python in zip(ours, theirs, strict=True))
            ratio = statistics.median(ratios)
            if size > 1 << 20 and call == "pull_ns":
                target = f"at most {MOST_OF_LARGE} times: {'kept' if ratio <= MOST_OF_LARGE else '**missed**'}"
            else:
                target = f"at most {MOST_OF_SMALL_US} us more: {'kept' if adds <= MOST_OF_SMALL_US else '**missed**'}"
            print(
                f"| {size} | `{name}` | {statistics.median(ours):.2f} | {statistics.median(theirs):.2f} "
                f"| {ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) | {adds:.2f} | {target} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read(sys.argv[2], int(sys.argv[3]))
    else:
        main(os.path.abspath(sys.argv[1]))
