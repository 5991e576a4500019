"""Versions that are staged: after another connection, after their own deadline, and for threads that share a reader."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from conftest import version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]


def beside(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Begins a call in another thread, which leaves what it returns or raises; most probably it is in the call now."""
    ended: list[Any] = []
    begins = threading.Event()

    def run() -> None:
        begins.set()
        try:
            ended.append(call())
        except slackline.Error as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begins.wait()
    time.sleep(0.3)
    return thread, ended


def test_a_version_of_the_publisher_before_is_not_swapped_in_after_reconnecting(transport: str) -> None:
    first = slackline.Publisher(version(0), transport=transport, begin_at=20)
    first.publish(version(21))
    with slackline.Reader(first.address) as reader:
        reader.prefetch()
        # It has been brought before the publisher is gone.
        time.sleep(0.5)
        first.close()
        with slackline.Publisher(version(0), address=first.address) as second:
            reader.reconnect()
            with pytest.raises(slackline.OutOfTurn, match="call prefetch"):
                reader.swap(timeout=5)
            second.publish(version(1))
            reader.prefetch(min_version=1)
            snapshot = reader.swap()
            assert (snapshot.version, snapshot.epoch) == (1, second.epoch)


def test_a_prefetch_that_was_under_way_is_dropped_by_reconnecting(transport: str) -> None:
    first = slackline.Publisher(version(0), transport=transport)
    with slackline.Reader(first.address) as reader:
        reader.prefetch(min_version=4)
        first.close()
        with slackline.Publisher(version(0), address=first.address) as second:
            reader.reconnect()
            with pytest.raises(slackline.OutOfTurn, match="call prefetch"):
                reader.swap(timeout=5)
            reader.prefetch()
            assert reader.swap().epoch == second.epoch


def test_a_swap_that_waits_is_told_that_the_reader_has_connected_again(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=1)
    waiting, ended = beside(lambda: reader.swap(timeout=30))
    reader.reconnect()
    waiting.join()
    assert isinstance(ended[0], slackline.OutOfTurn) and "has connected again" in str(ended[0])
    publisher.publish(version(1))
    reader.prefetch(min_version=1)
    assert reader.swap().version == 1


@pytest.mark.parametrize("raises", [False, True])
def test_connecting_again_in_a_handler_drops_what_the_interrupted_swap_waits_for(pair: Pair, raises: bool) -> None:
    publisher, reader = pair
    turns: list[int] = []

    def handle(_signal: int, _frame: FrameType | None) -> None:
        turns.append(publisher.publish(version(1)))
        # The prefetch brings it.
        time.sleep(0.5)
        reader.reconnect()
        if raises:
            raise ZeroDivisionError

    reader.prefetch(min_version=1)
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(ZeroDivisionError if raises else slackline.OutOfTurn) as caught:
            reader.swap(timeout=30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert turns == [1] and (raises or "has connected again" in str(caught.value))
    reader.prefetch(min_version=1)
    assert reader.swap().version == 1


def test_a_prefetch_whose_time_was_over_is_begun_again_by_swap(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=1, timeout=0.1)
    time.sleep(0.3)
    waiting, ended = beside(lambda: reader.swap(timeout=30))
    publisher.publish(version(1))
    waiting.join()
    assert isinstance(ended[0], slackline.Snapshot) and ended[0].version == 1


def test_a_swap_that_was_late_may_be_called_again(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=1, timeout=0)
    for timeout in (0, 0.1, 0.3):
        with pytest.raises(slackline.DeadlineError) as caught:
            reader.swap(timeout=timeout)
        assert caught.value.is_retryable
    publisher.publish(version(1))
    assert reader.swap().version == 1


def test_nothing_is_staged_while_another_thread_waits_in_a_swap(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=1)
    waiting, ended = beside(lambda: reader.swap(timeout=30))
    with pytest.raises(slackline.OutOfTurn, match="is staged already"):
        reader.prefetch(min_version=0)
    with pytest.raises(slackline.OutOfTurn, match="another call waits"):
        reader.swap()
    publisher.publish(version(1))
    waiting.join()
    assert ended[0].version == 1
    with pytest.raises(slackline.OutOfTurn, match="no version is staged"):
        reader.swap()


def test_a_late_swap_leaves_what_another_thread_may_swap_in(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=1)
    waiting, ended = beside(lambda: reader.swap(timeout=0.2))
    waiting.join()
    assert isinstance(ended[0], slackline.DeadlineError)
    with pytest.raises(slackline.OutOfTurn, match="is staged already"):
        reader.prefetch()
    publisher.publish(version(1))
    assert reader.swap().version == 1


def test_a_staged_version_keeps_the_bounds_of_the_moment_at_which_it_was_staged(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    reader.prefetch(max_staleness=0)
    time.sleep(0.5)
    publisher.publish(version(2))
    assert reader.pull().version == 2
    snapshot = reader.swap()
    assert (snapshot.version, snapshot.staleness) == (1, 0)
