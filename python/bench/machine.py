"""What the records of the benchmarks say of the machine and of the command."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any


def record(name: str, packages: list[str]) -> dict[str, Any]:
    """The head of a record. `checks` are those of the reproductions; a benchmark has none."""
    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = int(_lines("/proc/meminfo")[0].split()[1])
    return {
        "name": name,
        "checks": [],
        "command": " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processors": os.cpu_count(),
            "model": cpu[0] if cpu else platform.machine(),
            "memory_gib": round(memory / 2**20, 1),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "packages": {package: version(package) for package in packages},
        "load_before": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def version(package: str) -> str | None:
    """The version of a package that is installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def finish(record: dict[str, Any]) -> None:
    """The end of a run: 1 minute's and 15 minutes' load."""
    one, _, fifteen = os.getloadavg()
    record["load_after"], record["load_of_15_minutes"] = one, fifteen


def write(record: dict[str, Any], path: str) -> None:
    """One line for each run, so that a difference of two records can be read."""
    head = {key: value for key, value in record.items() if key != "runs"}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    runs = ",\n".join(json.dumps(one) for one in record["runs"])
    Path(path).write_text("{\n" + ",\n".join(lines) + ',\n"runs": [\n' + runs + "\n]}\n", encoding="utf-8")
