"""What errors say: the cause that it is, a remedy that helps, and whether to try again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import told

import slackline

Start = Callable[..., Any]

TABLE = {"a": np.zeros(3, "float32")}

# A publisher at version 3, which may be stopped.
PUBLISHER = """
publisher = slackline.Publisher({"a": np.zeros(1000, "float32")}, transport="tcp", lease=30.0)
for value in range(1, 4):
    publisher.publish({"a": np.full(1000, value, "float32")})
print(publisher.address)
sys.stdin.read()
"""


def stop(child: Any) -> None:
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)


def test_a_publisher_that_was_never_heard_is_not_said_to_be_at_version_0(python: Start) -> None:
    child = python(PUBLISHER)
    with slackline.Reader(child.stdout.readline().strip()) as reader:
        stop(child)
        calls: list[Callable[[], object]] = [
            lambda: reader.pull(timeout=0.3, min_version=1),
            lambda: reader.pull(timeout=0.3),
            lambda: reader.latest(timeout=0.3),
        ]
        for call in calls:
            with pytest.raises(slackline.DeadlineError, match="but does not answer; see that its process runs"):
                call()


def test_a_version_that_was_not_read_in_time_is_not_said_to_be_unpublished(python: Start) -> None:
    child = python(PUBLISHER)
    with slackline.Reader(child.stdout.readline().strip()) as reader:
        assert reader.pull().version == 3
        stop(child)
        calls: dict[Callable[[], object], int] = {
            lambda: reader.pull(timeout=0.3): 3,
            lambda: reader.pull(timeout=0.3, version=1): 1,
            lambda: reader.pull(timeout=0.3, min_version=2): 3,
        }
        for call, needed in calls.items():
            text = f"needed version {needed}, the newest is 3, and it was not read in time; its owner may not answer"
            with pytest.raises(slackline.DeadlineError, match=text):
                call()
        with pytest.raises(slackline.DeadlineError, match="needed version 4, the newest is 3; it may not be published"):
            reader.pull(timeout=0.3, min_version=4)
        with pytest.raises(slackline.DeadlineError, match="but does not answer; its owner may not answer, the link"):
            reader.latest(timeout=0.3)


@pytest.mark.parametrize("scheme", ["bsp", "ssp(0)", "k-sync(2)", "dbw", "vap(1)", "adasync"])
def test_a_worker_that_waits_for_another_one_does_not_blame_a_silent_server(scheme: str) -> None:
    with slackline.Server(TABLE, scheme=scheme, workers=2) as server, slackline.Worker([server.address]) as worker:

        def steps(timeout: float) -> None:
            for _ in range(3):
                with worker.step(timeout=timeout) as step:
                    step.publish(1.0, gradient={"a": np.full(3, 100, "float32")}, timeout=timeout)

        text = "the server has version 0 with all clocks before 0.*a worker or the server may be slow or gone"
        for call in (steps, lambda timeout: worker.flush(timeout=timeout)):
            told(call, slackline.DeadlineError, rf"did not end within (300ms|3s|30s): .*{text}")


def test_a_wait_for_workers_says_how_many_have_left() -> None:
    with slackline.Server(TABLE, workers=2) as server:
        slackline.Worker([server.address]).close()
        server.wait(left=1)
        with pytest.raises(slackline.DeadlineError, match="within 100ms: 1 of 2 workers have left; ") as caught:
            server.wait(left=2, timeout=0.1)
        assert caught.value.is_retryable and str(caught.value.remedy) in str(caught.value)


def test_what_no_repetition_cures_is_a_bad_option_and_not_a_lost_peer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    tables = slackline.Tables()
    with slackline.Publisher(TABLE) as publisher:
        calls: list[Callable[[], object]] = [
            lambda: slackline.Reader(publisher.address, table="a\nb", timeout=5),
            lambda: tables.publisher("a\nb", TABLE),
            # An address for documentation, which is no host's.
            lambda: slackline.Publisher(TABLE, address="192.0.2.1:0", transport="tcp", secret=b"a secret of a job"),
        ]
        for path in ("file", "file/socket", "none/socket", "open/socket", "x" * 200):
            address = str(tmp_path / path)
            calls.append(lambda address=address: slackline.Publisher(TABLE, address=address))  # type: ignore[misc]
        for call in calls:
            with pytest.raises(slackline.BadOption) as caught:
                call()
            assert not caught.value.is_retryable and str(caught.value.remedy) in str(caught.value)


def test_a_port_that_another_process_listens_at_is_told_to_be_in_use() -> None:
    with slackline.Publisher(TABLE, transport="tcp") as publisher:
        with pytest.raises(slackline.PeerGone, match="another process listens there: choose another port"):
            slackline.Publisher(TABLE, address=publisher.address)



def test_a_socket_that_this_user_may_not_reach_refuses(python: Start, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    child = python(
        """
        if os.geteuid() == 0:
            os.seteuid(65534)  # root would be let in
        try:
            slackline.Reader(address, timeout=5)
        except slackline.Refused as error:
            print(error.is_retryable, error)
        """,
        address=str(closed / "socket"),
    )
    said = child.stdout.readline()
    assert said.startswith("False ") and said.endswith("; run both sides as the same user\n")


def test_a_text_that_cannot_be_sent_is_not_said_to_be_of_a_wrong_type() -> None:
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        slackline.Worker(["\ud800"])


def test_a_wrong_type_is_a_type_error_that_says_what_to_give(tmp_path: Path) -> None:
    array: Any = np.zeros(3, "float32")
    with slackline.Publisher(TABLE) as publisher, slackline.Reader(publisher.address) as reader:
        with slackline.Server(TABLE) as server, slackline.Worker([server.address]) as worker:
            wrong: Any = server.address
            mapping, addresses = "give a mapping of names to arrays", "give a list of addresses"
            calls: list[tuple[str, Callable[[], object]]] = [
                (f"type list: {mapping}", lambda: publisher.publish([array])),  # type: ignore[arg-type]
                (f"type ndarray: {mapping}", lambda: reader.pull(array)),
                (f"type ndarray: {mapping}", lambda: worker.step(array)),
                (f"type str: {addresses}", lambda: slackline.Worker(wrong)),
                (f"type int: {addresses}", lambda: slackline.Worker([5])),  # type: ignore[list-item]
                (f"type int: {addresses}", lambda: slackline.Worker(5)),  # type: ignore[arg-type]
                ("type str: give a list of names", lambda: slackline.Reader(publisher.address, select="a")),
                ("type str: give bytes", lambda: publisher.publish(TABLE, label="abc")),  # type: ignore[arg-type]
                (
                    "type int: give bytes, or the path of a file",
                    lambda: slackline.Publisher(TABLE, secret=5),  # type: ignore[arg-type]
                ),
            ]
            for text, call in calls:
                with pytest.raises(TypeError, match=text) as caught:
                    call()
                assert "\n" not in str(caught.value)
            # What is right is taken still.
            assert publisher.publish(TABLE, label=b"abc") == 1
            slackline.Worker((server.address,)).close()
    (tmp_path / "secret").write_text("a secret of a job")
    (tmp_path / "secret").chmod(0o600)
    for secret in (b"a secret of a job", str(tmp_path / "secret"), tmp_path / "secret"):
        slackline.Publisher(TABLE, secret=secret).close()


def test_too_many_workers_are_named_as_such() -> None:
    with pytest.raises(slackline.BadOption, match="option workers cannot be 70000: .* 65535: use fewer workers"):
        slackline.Server(TABLE, workers=70000, scheme="asp")


def test_options_are_named_as_python_names_them() -> None:
    options: list[tuple[str, dict[str, Any]]] = [
        ("option readers cannot be 0", {"readers": 0}),
        ("option delta_bytes cannot be 0", {"deltas": 1, "delta_bytes": 0}),
        ("`lease` cannot be -1", {"lease": -1}),
    ]
    for text, given in options:
        with slackline.Tables() as tables:
            for make in (slackline.Publisher, lambda table, **given: tables.publisher("a", table, **given)):
                with pytest.raises(slackline.BadOption, match=text) as caught:
                    make(TABLE, **given)
                assert str(caught.value).endswith(str(caught.value.remedy))
    with pytest.raises(slackline.BadOption, match="`clock_error` cannot be -1"):
        slackline.check([], clock_error=-1)
    with pytest.raises(slackline.BadOption, match="`timeout` cannot be -0.5"):
        slackline.Reader("@none", timeout=-0.5)


def test_a_selection_of_a_tensor_that_is_not_there_names_it() -> None:
    with slackline.Publisher(TABLE) as publisher:
        for select in (["nope"], {"nope": None}, {"nope": (slice(0, 2),)}):
            with pytest.raises(slackline.LayoutMismatch, match="nope"):
                slackline.Reader(publisher.address, select=select)


def test_a_tensor_that_no_memory_holds_is_refused_with_its_name() -> None:
    for shape in ((2**40, 2**40), (2**63,), (0, 2**63), (2**61,), (0, 2**40, 2**40)):
        with pytest.raises(slackline.LayoutMismatch, match="\"big\" of shape .* is too large"):
            slackline.TensorSpec("big", "float32", shape)
    assert slackline.TensorSpec("big", "float4_e2m1fn", (2**60, 0)).nbytes == 0
    assert slackline.TensorSpec("big", "float32", (2**30, 2**20)).nbytes == 2**52


def test_a_line_that_is_no_record_has_its_remedy_once() -> None:
    with pytest.raises(slackline.BadOption, match="^line 1: ") as caught:
        slackline.check(["x"])
    assert caught.value.remedy is not None and str(caught.value).count("give lines") == 1
    assert str(caught.value).endswith(caught.value.remedy)
