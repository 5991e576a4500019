"""RDMA by addresses of its kind, on a host without an RDMA device: an error that says so and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import version

import slackline

DEVICES = Path("/sys/class/infiniband")
HAS_DEVICE = DEVICES.is_dir() and any(DEVICES.iterdir())

OWNED, REACHED = "verbs:127.0.0.1:0", "verbs:127.0.0.1:20999"

CALLS: dict[str, Callable[[], object]] = {
    "publisher": lambda: slackline.Publisher(version(0), address=OWNED),
    "publisher that names the transport": lambda: slackline.Publisher(version(0), address=OWNED, transport="verbs"),
    "publisher at several addresses": lambda: slackline.Publisher(version(0), address=f"@slackline-rdma,{OWNED}"),
    "tables": lambda: slackline.Tables(address=OWNED),
    "reader": lambda: slackline.Reader(REACHED),
    "relay": lambda: slackline.Relay(REACHED),
    "server": lambda: slackline.Server({"a": np.ones(4, "float32")}, address=OWNED),
    "worker": lambda: slackline.Worker([REACHED]),
}


@pytest.mark.skipif(HAS_DEVICE, reason="this host has an RDMA device")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_an_rdma_device_the_error_names_the_remedy(call: Callable[[], object]) -> None:
    with pytest.raises(slackline.Unsupported) as caught:
        call()
    error = caught.value
    assert error.operation == "opening an RDMA device" and not error.is_retryable
    assert error.remedy and str(error).endswith(error.remedy)
