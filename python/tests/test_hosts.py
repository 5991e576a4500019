"""The addresses that plug-ins hand out lead to their host from everywhere."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import slackline
from slackline.integrations._hosts import VARIABLE, beside, reachable

SECRET = b"an example of a secret that is long enough"


def test_an_address_that_names_its_host_stays_as_it_is() -> None:
    for address in ("@name", "/run/me/w.sock", "10.0.0.7:7000", "[fd00::7]:7000", "verbs:10.0.0.7:7", "node7:7000"):
        assert reachable(address) == address
    assert reachable("@name,10.0.0.7:7000") == "@name,10.0.0.7:7000"


@pytest.mark.parametrize(
    ("given", "address", "handed_out"),
    [
        ("10.0.0.7", "0.0.0.0:7000", "10.0.0.7:7000"),
        ("10.0.0.7", "verbs:0.0.0.0:7000", "verbs:10.0.0.7:7000"),
        ("10.0.0.7", "@name,0.0.0.0:7000", "@name,10.0.0.7:7000"),
        ("fd00::7", "[::]:7000", "[fd00::7]:7000"),
        ("[fd00::7]", "[::]:7000", "[fd00::7]:7000"),
        ("node7", "0.0.0.0:7000", "node7:7000"),
    ],
)
def test_the_environment_names_the_host(
    given: str, address: str, handed_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, given)
    assert reachable(address) == handed_out


def test_a_host_of_ray_has_the_address_that_ray_knows_it_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    ray: Any = types.ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.util = types.SimpleNamespace(get_node_ip_address=lambda: "10.0.0.9")
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert reachable("0.0.0.0:7000") == "10.0.0.9:7000"


def test_a_publisher_that_listens_everywhere_is_read_at_the_address_that_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "127.0.0.1")
    table = {"a": memoryview(b"\1\2\3\4")}
    for everywhere in ("0.0.0.0:0", "[::]:0"):
        with slackline.Publisher(table, address=everywhere, secret=SECRET) as publisher:
            publisher.publish(table)
            assert not reachable(publisher.address).startswith(("0.0.0.0", "[::]"))
            with slackline.Reader(reachable(publisher.address), secret=SECRET) as reader:
                assert bytes(memoryview(reader.pull()["a"])) == b"\1\2\3\4"


def apart(tmp_path: Path, setting: str, code: str) -> str:
    """The output of a program in a network of its own, whose host has these settings."""
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 plain\n10.77.0.5 named\n")
    begin = f"""
        ip link set lo up
        ip link add inside type veth peer name outside
        ip link set outside up
        ip link set inside up
        mount --bind {tmp_path / "hosts"} /etc/hosts
        hostname plain
        {setting}
        exec "$@"
    """
    command = ["unshare", "-Urnmu", "sh", "-ec", begin, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr or "Unknown device type" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = "from slackline.integrations._hosts import reachable; print(reachable({address!r}))"


@pytest.mark.parametrize(
    ("setting", "address", "handed_out"),
    [
        ("ip address add 10.77.0.6/24 dev inside; ip route add default via 10.77.0.1", "0.0.0.0:7", "10.77.0.6:7"),
        ("ip address add 10.77.0.6/24 dev inside; ip route add default via 10.77.0.1", "[::]:7", "10.77.0.6:7"),
        (
            "ip address add fd00::6/64 dev inside nodad; ip route add default via fd00::1 dev inside src fd00::6",
            "[::]:7",
            "[fd00::6]:7",
        ),
        ("hostname named", "0.0.0.0:7", "10.77.0.5:7"),
    ],
)
def test_a_host_is_known_by_its_route_to_others_or_by_its_name(
    setting: str, address: str, handed_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert apart(tmp_path, setting, ASK.format(address=address)) == handed_out


def test_a_host_that_others_do_not_reach_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    code = f"""
import slackline
from slackline.integrations._hosts import reachable
try:
    reachable("0.0.0.0:7")
except slackline.BadOption as error:
    assert {VARIABLE!r} in error.remedy and "plain" in str(error)
    print("told")
"""
    assert apart(tmp_path, "", code) == "told"


@pytest.mark.parametrize(
    ("address", "states"),
    [
        ("@w", "@w-states"),
        ("/run/me/w.sock", "/run/me/w.sock-states"),
        ("10.0.0.7:7000", "10.0.0.7:0"),
        ("[fd00::7]:7000", "[fd00::7]:0"),
        ("verbs:10.0.0.7:7000", "verbs:10.0.0.7:0"),
        ("@w,10.0.0.7:0", "@w-states,10.0.0.7:0"),
        ("10.0.0.7:0,@w", "10.0.0.7:0,@w-states"),
    ],
)
def test_the_address_beside_another_one_is_of_the_same_hosts_and_transports(address: str, states: str) -> None:
    assert beside(address) == states
