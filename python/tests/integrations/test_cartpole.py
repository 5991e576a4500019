"""The bench of asynchronous actor-critic: every sample's weights are verified, and as fresh as asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed: `cargo xtask wheel --integrations` installs it")

BENCH = Path(__file__).parents[2] / "bench" / "cartpole.py"


def test_a_mixture_of_bounds_learns_from_samples_whose_reads_are_all_verified(tmp_path: Path) -> None:
    out, trace = tmp_path / "record.json", tmp_path / "trace"
    command = [sys.executable, str(BENCH), "--bounds", "mixture", "--runs", "1", "--seconds", "8"]
    subprocess.run([*command, "--out", str(out), "--trace", str(trace)], check=True, timeout=200)
    (run,) = json.loads(out.read_text())["runs"]
    assert run["violations"] == [] and run["verified"] == run["reads"] > 100
    # A process whose bound is 8 keeps what it has, and one whose bound is 0 does not.
    assert 0 < run["most_stale_at_read"] <= 8
    returns = [value for value in run["returns"] if value is not None]
    assert max(returns) > 2 * returns[0]
    said = [json.loads(line) for line in (tmp_path / "trace-mixture-0.jsonl").read_text().splitlines()]
    reads: list[dict[str, Any]] = [record["certificate"] for record in said if "certificate" in record]
    assert {read["max_staleness"] for read in reads} == {0, 2, 4, 8}
    assert run["samples"] == 32 * len(reads)
    # The program of the command line, which shares no process with the run, says the same.
    program = os.environ["SLACKLINE_CLI"]
    command = [program, "check", "--json", str(tmp_path / "trace-mixture-0.jsonl")]
    checked = subprocess.run(command, capture_output=True, text=True, check=True)
    verdict = json.loads(checked.stdout)
    assert (verdict["reads"], verdict["verified"], verdict["violations"]) == (run["reads"], run["reads"], [])
