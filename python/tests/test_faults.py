"""What goes wrong is told by a class, and in time: dead peers, signals, forks, secrets."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import free_port, told, version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]
Start = Callable[..., Any]

# Longer than a busy machine keeps a heartbeat from its turn.
LEASE = 1.5

PUBLISHER = """
publisher = slackline.Publisher({"a": np.zeros(1000, "float32")}, transport=transport, lease=1.0)
publisher.publish({"a": np.ones(1000, "float32")})
print(publisher.address)
sys.stdin.read()
"""


def test_a_killed_publisher_is_gone_to_its_readers_within_the_lease(transport: str, python: Start) -> None:
    child = python(PUBLISHER, transport=transport)
    with slackline.Reader(child.stdout.readline().strip()) as reader:
        snapshot = reader.pull()
        child.send_signal(signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(slackline.PeerGone) as caught:
            reader.pull(min_version=2, timeout=60)
        # The lease is 1 s; the rest is for a machine that is busy.
        assert time.monotonic() - begun < 30
        assert isinstance(caught.value, ConnectionError) and caught.value.is_retryable
        assert (snapshot["a"].numpy() == 1).all()
        with pytest.raises(slackline.PeerGone):
            reader.latest()


def test_a_killed_reader_disturbs_no_other_process(transport: str, python: Start) -> None:
    with slackline.Publisher(version(0), transport=transport, lease=1.0) as publisher:
        publisher.publish(version(1))
        child = python(
            "reader = slackline.Reader(address)\nkept = reader.pull()\nprint(kept.version)\nsys.stdin.read()",
            address=publisher.address,
        )
        with slackline.Reader(publisher.address) as reader:
            assert child.stdout.readline() == "1\n"
            child.kill()
            for value in range(2, 50):
                publisher.publish(version(value), timeout=10)
                assert reader.pull().version == value


def test_a_wait_for_all_readers_does_not_wait_for_one_that_is_lost(transport: str, python: Start) -> None:
    with slackline.Publisher(version(0), transport=transport, lease=LEASE) as publisher:
        child = python(
            "reader = slackline.Reader(address)\nprint('in')\nsys.stdin.read()", address=publisher.address
        )
        assert child.stdout.readline() == "in\n"
        with slackline.Reader(publisher.address) as reader:
            assert len(publisher.readers) == 2
            child.send_signal(signal.SIGSTOP)
            published = publisher.publish(version(1))
            assert reader.pull().version == published
            publisher.wait(published, timeout=20)


@pytest.mark.parametrize("wait", ["reader.pull(min_version=99)", "reader.swap()", "publisher.publish(arrays)"])
def test_ctrl_c_ends_every_wait(wait: str, python: Start) -> None:
    child = python(
        """
        arrays = {"a": np.zeros(10, "float32")}
        publisher = slackline.Publisher(arrays, frames=2)
        publisher.publish(arrays)
        reader = slackline.Reader(publisher.address)
        if "swap" in wait:
            reader.prefetch(min_version=99)
        pin = None
        if "publish" in wait:
            holder = slackline.Reader(publisher.address)
            pin = holder.pin()
            pinned = pin.__enter__()
            publisher.publish(arrays)
        print("waiting")
        begun = time.monotonic()
        try:
            exec(wait)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begun < 30)
        """,
        wait=wait,
    )
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    begun = time.monotonic()
    assert child.stdout.readline() == "interrupted True\n"
    assert time.monotonic() - begun < 30


def test_ctrl_c_ends_the_wait_for_a_publisher_that_does_not_come(python: Start) -> None:
    child = python(
        """
        print("waiting")
        try:
            slackline.Reader("@no-such-publisher")
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"


def test_ctrl_c_ends_the_wait_for_the_workers_of_the_hosts(python: Start) -> None:
    child = python(
        """
        os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        job = slackline.Job.from_env(per_host=True)
        print("waiting")
        try:
            job.serve({"a": np.zeros(4, "float32")})
        except KeyboardInterrupt:
            print("interrupted")
        os._exit(0)
        """,
        port=free_port(),
    )
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"


def test_other_threads_of_python_run_while_one_waits(pair: Pair) -> None:
    _publisher, reader = pair
    counted = 0

    def wait() -> None:
        with pytest.raises(slackline.DeadlineError):
            reader.pull(min_version=1, timeout=0.5)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        counted += 1
    waiting.join()
    # A thread that kept the interpreter for its slices would leave five turns.
    assert counted > 1000


def test_threads_that_share_a_reader_take_turns(pair: Pair) -> None:
    publisher, reader = pair
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(200):
                snapshot = reader.pull()
                assert len(np.unique(snapshot["a"].numpy())) == 1
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    value = 0
    while any(thread.is_alive() for thread in threads):
        value += 1
        publisher.publish(version(value))
    assert not failures


def test_a_forked_child_is_told_and_its_parent_goes_on(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls = (reader.pull, reader.latest, reader.close, publisher.frame, lambda: publisher.publish(version(2)))
            for call in calls:
                try:
                    call()
                    break
                except slackline.OutOfTurn as error:
                    assert "forked" in str(error)
            else:
                del publisher, reader
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publisher.publish(version(2))
    assert reader.pull(min_version=2).version == 2


def test_memory_that_is_lent_for_a_while_is_not_lent_in_a_forked_child() -> None:
    with slackline.Publisher(version(0), transport="shm") as publisher, slackline.Reader(publisher.address) as reader:
        with reader.pin() as pinned, publisher.frame() as frame:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for lent in (pinned, frame):
                        try:
                            lent["a"].numpy()
                            break
                        except (slackline.OutOfTurn, BufferError) as error:
                            assert "forked" in str(error), error
                    else:
                        status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            frame["a"].numpy()[:] = 1
            assert pinned["a"].numpy().sum() == 0


def test_a_pin_that_was_lost_is_told_at_the_end_of_its_block(python: Start) -> None:
    with slackline.Publisher(version(0), transport="shm", lease=LEASE) as publisher:
        child = python(
            """
            reader = slackline.Reader(address)
            pin = reader.pin()
            try:
                with pin as snapshot:
                    print(pin.is_intact(), snapshot["a"].numpy().sum())
                    sys.stdin.readline()
                    print(pin.is_intact())
            except slackline.PeerGone as error:
                print("lost" if "several versions" in str(error) else error)
            """,
            address=publisher.address,
        )
        assert child.stdout.readline() == "True 0.0\n"
        child.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while publisher.readers:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for number in range(1, 6):
            publisher.publish(version(number))
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert [child.stdout.readline(), child.stdout.readline()] == ["False\n", "lost\n"]


def test_a_child_of_multiprocessing_that_forks_ends_well(python: Start) -> None:
    child = python(
        """
        import multiprocessing
        publisher = slackline.Publisher({"a": np.zeros(10, "float32")})
        reader = slackline.Reader(publisher.address)
        def work():
            try:
                reader.pull()
            except slackline.OutOfTurn:
                sys.exit(7)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(20)
        print(process.exitcode, reader.pull().version)
        """
    )
    assert child.stdout.readline() == "7 0\n"


def test_a_wrong_secret_is_refused_and_the_right_one_is_not(tmp_path: Any) -> None:
    file = tmp_path / "secret"
    file.write_text("an example of a secret that is long enough\n")
    file.chmod(0o600)
    with slackline.Publisher(version(0), transport="tcp", secret=file) as publisher:
        publisher.publish(version(1))
        for wrong in (b"another example of a secret, also long", None):
            with pytest.raises(slackline.Refused):
                slackline.Reader(publisher.address, secret=wrong, timeout=5)
        with slackline.Reader(publisher.address, secret=str(file)) as reader:
            assert reader.pull().version == 1
    file.chmod(0o644)
    with pytest.raises(slackline.Refused) as refused:
        slackline.Reader("127.0.0.1:1", secret=file)
    assert isinstance(refused.value, PermissionError)


@pytest.mark.parametrize("encrypts", [True, False])
@pytest.mark.parametrize("argument", [True, False])
def test_processes_that_differ_in_encryption_refuse_each_other(
    encrypts: bool, argument: bool, python: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = b"an example of a secret that is long enough"
    child = python(
        """
        if encrypts:
            os.environ["SLACKLINE_TCP_ENCRYPT"] = "1"
        table = {"a": np.zeros(10, "float32")}
        publisher = slackline.Publisher(table, transport="tcp", secret=secret)
        print(publisher.address)
        sys.stdin.read()
        """,
        encrypts=encrypts,
        secret=secret,
    )
    monkeypatch.setenv("SLACKLINE_SECRET", secret.decode())
    monkeypatch.setenv("SLACKLINE_TCP_ENCRYPT", "0" if encrypts else "1")
    with pytest.raises(slackline.Refused, match="SLACKLINE_TCP_ENCRYPT=1"):
        slackline.Reader(child.stdout.readline().strip(), secret=secret if argument else None, timeout=5)


def test_what_answers_in_another_protocol_is_an_error_and_not_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            stream, _peer = listener.accept()
            with stream:
                stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(512))
                stream.recv(1 << 16)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(slackline.Error, match="not slackline") as caught:
            slackline.Reader(f"127.0.0.1:{listener.getsockname()[1]}", timeout=5)
        answering.join()
    assert type(caught.value) is slackline.Error


def test_a_reader_for_whom_there_is_no_room_is_told_when_to_ask_again(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport, readers=1) as publisher:
        publisher.publish(version(1))
        with slackline.Reader(publisher.address) as first:
            error = told(
                lambda timeout: slackline.Reader(publisher.address, timeout=timeout), slackline.Refused, "`readers`"
            )
            assert error.is_retryable
            assert error.retry_after is not None and 0 < error.retry_after <= 60
            assert first.pull().version == 1
        with slackline.Reader(publisher.address, timeout=30) as second:
            assert second.pull().version == 1
    with pytest.raises(slackline.Error) as gone:
        slackline.Reader(publisher.address, timeout=0.2)
    assert gone.value.retry_after is None


def test_beyond_this_host_nothing_is_served_without_a_secret() -> None:
    with pytest.raises(slackline.Refused) as caught:
        slackline.Publisher(version(0), address="0.0.0.0:0")
    assert "SLACKLINE_SECRET_FILE" in (caught.value.remedy or "")


def test_a_publisher_that_was_closed_is_gone_and_its_successor_is_another_epoch(transport: str) -> None:
    first = slackline.Publisher(version(0), transport=transport)
    reader = slackline.Reader(first.address)
    epoch = first.epoch
    first.close()
    with pytest.raises(slackline.PeerGone):
        reader.pull(min_version=1, timeout=20)
    with slackline.Publisher(version(0), address=first.address) as second:
        assert second.epoch != epoch
        assert slackline.Reader(first.address).epoch == second.epoch


def test_a_program_that_closes_nothing_ends_by_itself() -> None:
    code = (
        "import numpy, slackline\n"
        "publisher = slackline.Publisher({'a': numpy.zeros(10)})\n"
        "reader = slackline.Reader(publisher.address)\n"
        "pin = reader.pin(); snapshot = pin.__enter__(); array = snapshot['a'].numpy()\n"
        "frame = publisher.frame()\n"
        "reader.latest()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_version_that_is_overwritten_is_an_error_of_its_own(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as publisher:
        for value in range(1, 9):
            publisher.publish(version(value))
        with slackline.Reader(publisher.address) as reader:
            with pytest.raises(slackline.StaleError, match="version 1 is overwritten, the newest is 8") as caught:
                reader.pull(version=1)
            assert not caught.value.is_retryable and not isinstance(caught.value, TimeoutError)
            assert reader.pull().version == 8


@pytest.mark.parametrize("into", [False, True])
def test_a_copy_that_does_not_match_its_checksum_is_no_version(transport: str, into: bool) -> None:
    with slackline.Publisher(version(0), transport=transport, checksums=True) as publisher:
        with slackline.Reader(publisher.address, checksums=True) as reader:
            with publisher.frame() as frame:
                array = frame["a"].numpy()
                array[...] = 1
                begin = array.ctypes.data
                del array
            # Memory that fails: a write that the publisher knows nothing of.
            ctypes.memset(begin + 40, 0xAB, 1)
            arrays = version(9) if into else None
            with pytest.raises(slackline.DigestMismatch, match="version 1"):
                reader.pull(arrays)
            # Without checksums it goes unnoticed; the next version is whole.
            assert slackline.Reader(publisher.address).pull().version == 1
            publisher.publish(version(2))
            assert (reader.pull(arrays)["a"].numpy() == 2).all()


def test_a_wait_of_another_thread_ends_when_its_publisher_is_closed(transport: str) -> None:
    publisher = slackline.Publisher(version(0), transport=transport)
    outcome: list[slackline.OutOfTurn] = []

    def wait() -> None:
        with pytest.raises(slackline.OutOfTurn, match="closed by another thread") as caught:
            publisher.wait(9, readers=1, timeout=60)
        outcome.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    publisher.close()
    slackline.Publisher(version(0), address=publisher.address).close()  # the address is free
    waiting.join(30)
    assert len(outcome) == 1


def test_a_reader_is_connected_though_the_first_of_its_addresses_says_nothing() -> None:
    with socket.socket() as silent, slackline.Publisher(version(0), transport="tcp") as publisher:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        addresses = f"127.0.0.1:{silent.getsockname()[1]},{publisher.address}"
        with slackline.Reader(addresses, timeout=30) as reader:
            assert reader.pull().version == 0


def test_a_pin_keeps_its_bound_beside_a_publisher_that_never_rests() -> None:
    over = threading.Event()
    with slackline.Publisher(version(0), frames=8) as publisher, slackline.Reader(publisher.address) as reader:

        def publish() -> None:
            while not over.is_set():
                publisher.publish(version(1))

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            for _ in range(5000):
                with reader.pin(max_staleness=0) as snapshot:
                    assert snapshot.staleness == 0
        finally:
            over.set()
            publishing.join()
