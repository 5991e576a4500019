"""Names of hosts are looked up while Python goes on, within the timeout, and again until they are known.

Each program has namespaces of its own, in which the name server does not answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

# A wait that kept the interpreter until it looks for signals, each 100 ms, would leave others ten turns a second.
PRELUDE = """
import signal, socket, sys, threading, time
import numpy as np
import slackline

silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))
hosts = open("/etc/hosts", "a")
table = {"a": np.zeros(10, "float32")}
turns = 0

def know(name):
    print("127.0.0.1", name, file=hosts, flush=True)

def forget_all():
    hosts.truncate(0)

def count():
    global turns
    while True:
        time.sleep(0.001)
        turns += 1

def fails(call):
    "The class of the error, the seconds that it took, and how often another thread had its turn meanwhile."
    global turns
    turns, begun = 0, time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, time.monotonic() - begun, turns

threading.Thread(target=count, daemon=True).start()
"""

Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program whose look-ups take three seconds each, or as many as it says, but for names in its /etc/hosts."""
    files = {
        "resolv.conf": "nameserver 127.0.0.1\noptions attempts:1\n",
        "nsswitch.conf": "hosts: files dns\n",
        "hosts": "127.0.0.1 localhost\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    mounts = "".join(f"mount --bind {tmp_path / name} /etc/{name}\n" for name in files)
    within = ["unshare", "-Urnm", "sh", "-ec", f'ip link set lo up\n{mounts}exec "$@"', "sh"]
    try:
        subprocess.run([*within, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no namespaces here: {error}")

    def run(code: str, look_up: int = 3) -> None:
        command = [*within, sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
        environment = os.environ | {"RES_OPTIONS": f"timeout:{look_up}"}
        done = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize(
    "call",
    [
        'slackline.Reader("absent.example:1", timeout=0.5)',
        'slackline.Worker(["absent.example:1"], timeout=0.5)',
        'slackline.Relay("absent.example:1", timeout=0.5)',
        "reader.reconnect(timeout=0.5)",
    ],
)
def test_a_name_that_is_not_found_takes_the_timeout_and_not_the_interpreter(call: str, run: Run) -> None:
    run(
        f"""
        publisher = slackline.Publisher(table, transport="tcp")
        know("here.example")
        reader = slackline.Reader("here.example:" + publisher.address.rpartition(":")[2])
        forget_all()
        error, seconds, turns = fails(lambda: {call})
        assert error == "PeerGone" and 0.4 < seconds < 20 and turns > 20 * seconds, (error, seconds, turns)
        """,
        look_up=30,
    )


@pytest.mark.parametrize(
    "call",
    [
        'slackline.Publisher(table, address="absent.example:0")',
        'slackline.Server(table, address="absent.example:0")',
        'slackline.Tables(address="absent.example:0")',
        'slackline.Relay(publisher.address, address="absent.example:0")',
    ],
)
def test_a_name_to_listen_at_is_looked_up_without_the_interpreter_and_signals_end_that(call: str, run: Run) -> None:
    run(
        f"""
        publisher = slackline.Publisher(table, transport="tcp")
        error, seconds, turns = fails(lambda: {call})
        assert error == "PeerGone" and seconds > 2 and turns > 20 * seconds, (error, seconds, turns)
        """
    )
    run(
        f"""
        publisher = slackline.Publisher(table, transport="tcp")

        def handle(_signal, _frame):
            raise ZeroDivisionError

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        error, seconds, turns = fails(lambda: {call})
        assert error == "ZeroDivisionError" and seconds < 20, (error, seconds)
        """,
        look_up=30,
    )


def test_a_reader_waits_for_a_host_whose_name_comes_later(run: Run) -> None:
    run(
        """
        publisher = slackline.Publisher(table, transport="tcp")
        publisher.publish(table)
        threading.Timer(0.5, know, ["later.example"]).start()
        reader = slackline.Reader("later.example:" + publisher.address.rpartition(":")[2], timeout=30)
        assert reader.pull().version == 1
        """
    )


def test_a_name_that_is_not_known_ends_no_search_at_other_addresses(run: Run) -> None:
    run(
        """
        first = slackline.Publisher(table, transport="tcp")
        reader = slackline.Reader("absent.example:1," + first.address, timeout=10)
        assert reader.pull().version == 0
        first.close()
        second = slackline.Publisher(table, address=first.address, begin_at=7)
        reader.reconnect(timeout=10)
        assert reader.pull().version == 7
        """,
        look_up=30,
    )


def test_a_reader_waits_for_the_network_of_its_publisher(run: Run) -> None:
    run(
        """
        import subprocess

        def come():
            subprocess.run(["ip", "address", "add", "10.77.0.9/32", "dev", "lo"], check=True)

        secret = b"an example of a secret that is long enough"
        publisher = slackline.Publisher(table, address="0.0.0.0:0", secret=secret)
        address = "10.77.0.9:" + publisher.address.rpartition(":")[2]
        error, _seconds, _turns = fails(lambda: slackline.Reader(address, secret=secret, timeout=0.3))
        assert error == "PeerGone", error
        threading.Timer(0.5, come).start()
        reader = slackline.Reader(address, secret=secret, timeout=30)
        assert reader.pull().version == 0
        """
    )
