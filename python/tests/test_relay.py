"""Relays: readers that serve what they read."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import slackline
from conftest import version


def test_a_version_is_the_same_behind_a_relay(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as publisher:
        with slackline.Relay(publisher.address, transport=transport) as relay:
            with slackline.Reader(relay.address) as reader:
                for number in range(1, 6):
                    publisher.publish(version(number), step=10 * number, label=b"tagged")
                    snapshot = reader.pull(min_version=number, timeout=30)
                    assert (snapshot.version, snapshot.step) == (number, 10 * number)
                    assert snapshot["a"].numpy().tolist() == np.full(1000, number, "float32").tolist()
                (status,) = publisher.wait(5)  # The relay is its only reader.
                assert status.behind == 0
                deadline = time.monotonic() + 30
                while not any(status.holds == 5 for status in relay.readers):
                    assert time.monotonic() < deadline
                assert relay.version == 5


def test_the_origin_behind_a_relay_is_the_publisher_and_the_epoch_is_the_relays(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as publisher:
        publisher.publish(version(1))
        with slackline.Reader(publisher.address) as near:
            snapshot = near.pull()
            assert snapshot.epoch == snapshot.origin == near.epoch == publisher.epoch
        with slackline.Relay(publisher.address, transport=transport) as relay:
            with slackline.Reader(relay.address) as far:
                for number in range(2, 4):
                    publisher.publish(version(number))
                    snapshot = far.pull(min_version=number, timeout=30)
                    assert snapshot.origin == publisher.epoch
                    assert snapshot.epoch == far.epoch != publisher.epoch
                # Into arrays of the program's own, too.
                assert far.pull(version(0), timeout=30).origin == publisher.epoch
                # The bound is counted against the relay, also when that has lost its publisher.
                publisher.close()
                assert far.pull(max_staleness=0, timeout=30).staleness == 0


def test_a_relay_of_a_publisher_that_another_one_follows_says_that_the_epoch_changed(transport: str) -> None:
    first = slackline.Publisher(version(0), transport=transport)
    with slackline.Relay(first.address, transport=transport) as relay:
        with slackline.Reader(relay.address) as reader:
            first.publish(version(1))
            assert reader.pull(min_version=1, timeout=30).origin == first.epoch
            first.close()
            with slackline.Publisher(version(0), address=first.address) as second:
                second.publish(version(2))
                deadline = time.monotonic() + 30
                with pytest.raises(slackline.EpochChanged, match="another publisher") as caught:
                    while relay.version < 2:
                        assert time.monotonic() < deadline
                        time.sleep(0.01)
                assert isinstance(caught.value, slackline.PeerGone) and caught.value.retry_after is None
                # Its readers are told, and get no version of another origin.
                with pytest.raises(slackline.PeerGone):
                    reader.pull(min_version=2, timeout=30)


def test_a_relay_goes_on_with_the_next_owner_and_closed_it_says_so(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as publisher:
        first = slackline.Relay(publisher.address, transport=transport)
        with slackline.Relay(f"{first.address},{publisher.address}", transport=transport) as second:
            with slackline.Reader(second.address) as reader:
                publisher.publish(version(1))
                assert reader.pull(min_version=1, timeout=30).version == 1
                first.close()
                with pytest.raises(slackline.OutOfTurn):
                    first.version
                publisher.publish(version(2))
                assert reader.pull(min_version=2, timeout=30).version == 2


def test_a_relay_without_a_publisher_is_told_by_the_deadline() -> None:
    with pytest.raises((slackline.PeerGone, slackline.DeadlineError)):
        slackline.Relay("@no-such-publisher", timeout=0.3)


def test_readers_of_a_tree_are_sent_to_relays_and_go_on_when_one_is_gone(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport, branches=1) as publisher:
        publisher.publish(version(1), step=10)
        root = publisher.address
        near = slackline.Relay(root, transport=transport, tree=True)
        with slackline.Relay(root, transport=transport, tree=True) as far:
            deadline = time.monotonic() + 30
            while near.version < 1 or far.version < 1:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            while True:
                reader = slackline.Reader(root, tree=True)
                if len(publisher.readers) == 1:  # Only the first relay reads from the publisher.
                    break
                reader.close()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with reader:
                assert reader.pull(timeout=30).step == 10
                near.close()
                publisher.publish(version(2), step=20)
                while True:
                    try:
                        snapshot = reader.pull(min_version=2, timeout=30)
                        break
                    except (slackline.PeerGone, slackline.EpochChanged):
                        reader.reconnect(timeout=30)
                assert snapshot.step == 20
                deadline = time.monotonic() + 30
                while far.version < 2:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)


def test_other_threads_of_python_run_while_a_relay_that_was_not_closed_is_dropped(python: Callable[..., Any]) -> None:
    child = python(
        """
        publisher = slackline.Publisher({"a": np.zeros(10, "float32")}, transport="tcp")
        print(publisher.address)
        sys.stdin.read()
        """
    )
    root = child.stdout.readline().strip()
    relays = [slackline.Relay(root, transport="tcp", tree=True) for _ in range(3)]
    # A relay whose publisher answers no more has a question open most of the time, which it waits for.
    child.send_signal(signal.SIGSTOP)
    time.sleep(2)
    turns, done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)

    counting = threading.Thread(target=count)
    counting.start()
    begun = time.monotonic()
    relays.clear()
    seconds = time.monotonic() - begun
    done.set()
    counting.join()
    assert seconds < 0.2 or turns > 20, (seconds, turns)


def test_a_relay_in_a_tree_has_one_publisher() -> None:
    with pytest.raises(slackline.BadOption, match="one publisher"):
        slackline.Relay("@one,@other", tree=True)
