"""What the tests share. Run them from outside of the source tree, so that `slackline` is the installed package."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import slackline


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport that every machine has."""
    return str(request.param)


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts another process that runs this code, with these names set, and ends it with the test."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, **names: Any) -> subprocess.Popen[str]:
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        # A shell that starts the tests in the background has SIGINT ignored, and children inherit that.
        begin = "import os, signal, sys, threading, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code = begin + "import numpy as np\nimport slackline\n" + given + textwrap.dedent(code)
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def pair(transport: str) -> Iterator[tuple[slackline.Publisher, slackline.Reader]]:
    """A publisher of `a`, 1000 times float32, and `b`, 3 times int64, and its reader."""
    table = {"a": np.zeros(1000, "float32"), "b": np.zeros(3, "int64")}
    with slackline.Publisher(table, transport=transport) as publisher:
        with slackline.Reader(publisher.address) as reader:
            yield publisher, reader


def told(call: Callable[[float], object], error: type[slackline.Error], text: str) -> slackline.Error:
    """What `call` raises by its deadline: this error with this text, of which a busy machine may know too late."""
    raised = []
    for timeout in (0.3, 3.0, 30.0):
        with pytest.raises(slackline.Error) as caught:
            call(timeout)
        if isinstance(caught.value, error) and re.search(text, str(caught.value)):
            return caught.value
        raised.append(caught.value)
    raise AssertionError(f"{text!r} in none of {raised}")


_calls = itertools.count()


def free_port() -> int:
    """A port at which no process listens, from those that the system gives to no connection meanwhile."""
    while True:
        port = 20480 + (13 * os.getpid() + next(_calls)) % 4096
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def version(value: int) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of `pair` filled with one value."""
    return {"a": np.full(1000, value, "float32"), "b": np.full(3, value, "int64")}
