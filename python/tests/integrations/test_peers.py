"""The litmus of the table of peers sees torn reads where there are some, and none of slackline's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `cargo xtask wheel --integrations` installs it")

PEERS = Path(__file__).parents[2] / "bench" / "peers.py"


def cell(*words: str) -> dict[str, Any]:
    """One cell of the table."""
    command = [sys.executable, str(PEERS), "--repeat", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["slackline, pin", "slackline, pull", "slackline, prefetch and swap"])
def test_no_read_of_slackline_is_torn_also_when_a_reader_is_killed(name: str) -> None:
    free, kill = cell(name, "free", "16", "2"), cell(name, "kill", "16", "2")
    for found, readers in ((free, 2), (kill, 1)):
        assert found["publisher_error"] is None and len(found["readers_found"]) == readers
        for reader in found["readers_found"]:
            assert (reader["error"], reader["torn"]) == (None, 0) and reader["reads"] > 3


def test_reads_of_a_file_that_is_overwritten_are_torn() -> None:
    readers = cell("file on tmpfs, overwritten", "free", "64", "2")["readers_found"]
    assert sum(reader["torn"] for reader in readers) > 0


def test_a_delivery_is_measured_with_its_memory_and_its_pause() -> None:
    found = cell("slackline, pin", "deliver", "64", "2")
    assert found["delivered_gb_s"] > 0 and found["pause_ms"] > 0
    # Three frames, and nothing of each reader's own.
    small = cell("slackline, pin", "deliver", "1", "2")
    assert 2.9 < (found["held_mib"] - small["held_mib"]) / 63 < 3.1
