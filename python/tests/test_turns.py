"""Calls of one object that meet: in a handler of a signal, in the block of a step, in threads of which one closes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]
Call = Callable[[], object]


@pytest.fixture
def interrupted() -> Iterator[Callable[..., None]]:
    """Has a handler of a signal call this, in the middle of what comes next, and again and again if asked to."""

    def interrupt(handler: Call, again: float = 0) -> None:
        signal.signal(signal.SIGALRM, lambda _signal, _frame: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.3, again)

    before = signal.getsignal(signal.SIGALRM)
    yield interrupt
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def worker() -> Iterator[slackline.Worker]:
    """A worker that waits in its second step for another one, which does not come."""
    with slackline.Server({"a": np.zeros(10, "float32")}, scheme="bsp", workers=2) as server:
        with slackline.Worker([server.address]) as worker, slackline.Worker([server.address]):
            with worker.step() as step:
                step.publish()
            yield worker


def calls_of(reader: slackline.Reader, timeout: float = 60) -> dict[str, Call]:
    return {
        "pull": lambda: reader.pull(min_version=9, timeout=timeout),
        "into": lambda: reader.pull(version(0), min_version=9, timeout=timeout),
        "pin": lambda: reader.pin(min_version=9, timeout=timeout),
    }


@pytest.mark.parametrize("call", ["close", "latest", "epoch"])
def test_a_handler_of_a_signal_that_calls_the_reader_it_interrupts_is_told_at_once(
    pair: Pair, interrupted: Callable[..., None], call: str
) -> None:
    publisher, reader = pair
    again: dict[str, Call] = {"close": reader.close, "latest": reader.latest, "epoch": lambda: reader.epoch}
    begun = time.monotonic()
    interrupted(again[call])
    with pytest.raises(slackline.OutOfTurn, match="this thread is in another call"):
        reader.pull(min_version=9, timeout=60)
    assert time.monotonic() - begun < 30
    # The reader is as it was.
    publisher.publish(version(1))
    assert reader.pull().version == 1


def test_a_handler_that_takes_the_error_leaves_the_call_as_it_is(
    pair: Pair, interrupted: Callable[..., None]
) -> None:
    publisher, reader = pair
    told: list[bool] = []

    def handle() -> None:
        try:
            reader.close()
        except slackline.OutOfTurn:
            told.append(True)
            publisher.publish(version(1))

    interrupted(handle)
    assert reader.pull(min_version=1, timeout=20).version == 1 and told == [True]


@pytest.mark.parametrize("call", ["close", "clock"])
def test_a_handler_of_a_signal_that_calls_the_worker_it_interrupts_is_told_at_once(
    worker: slackline.Worker, interrupted: Callable[..., None], call: str
) -> None:
    again: dict[str, Call] = {"close": worker.close, "clock": lambda: worker.clock}
    begun = time.monotonic()
    interrupted(again[call])
    with pytest.raises(slackline.OutOfTurn, match="this thread is in another call"):
        worker.step(timeout=60)
    assert time.monotonic() - begun < 30
    assert worker.clock == 1


def closed_beside(wait: Call, close: Call) -> None:
    """Closes while another thread waits, and checks that both end soon."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            wait()
        except BaseException as error:
            ended.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive(), ended
    begun = time.monotonic()
    close()
    waiting.join()
    assert time.monotonic() - begun < 30
    (error,) = ended
    assert isinstance(error, slackline.OutOfTurn) and "is closed" in str(error)


@pytest.mark.parametrize("call", ["pull", "into", "pin"])
def test_closing_a_reader_ends_the_calls_of_other_threads_that_wait(transport: str, call: str, pair: Pair) -> None:
    if (transport, call) == ("tcp", "pin"):
        pytest.skip("pins are of shared memory")
    _publisher, reader = pair
    closed_beside(calls_of(reader)[call], reader.close)


def assert_in_time(first: Call, second: Call) -> None:
    """Has another thread wait in `first`, of 5 s, and checks that `second`, of 6 s, ends before one of 10.5 s."""
    with slackline.Publisher(version(0)) as publisher, slackline.Reader(publisher.address) as other:

        def in_vain(call: Call) -> threading.Thread:
            waiting = threading.Thread(target=pytest.raises, args=(slackline.DeadlineError, call))
            waiting.start()
            return waiting

        waits = [in_vain(call) for call in (first, calls_of(other, 10.5)["pull"])]
        time.sleep(0.3)
        with pytest.raises(slackline.DeadlineError):
            second()
        assert waits[1].is_alive()
        for waiting in waits:
            waiting.join()


@pytest.mark.parametrize("call", ["pull", "into", "pin"])
def test_the_time_of_a_call_of_a_reader_begins_before_its_turn(transport: str, call: str, pair: Pair) -> None:
    if (transport, call) == ("tcp", "pin"):
        pytest.skip("pins are of shared memory")
    _publisher, reader = pair
    assert_in_time(calls_of(reader, 5)["pull"], calls_of(reader, 6)[call])


@pytest.mark.parametrize("call", ["step", "flush"])
def test_the_time_of_a_call_of_a_worker_begins_before_its_turn(worker: slackline.Worker, call: str) -> None:
    waits: dict[str, Call] = {"step": lambda: worker.step(timeout=6), "flush": lambda: worker.flush(timeout=6)}
    assert_in_time(lambda: worker.step(timeout=5), waits[call])


def test_a_reader_is_closed_by_another_thread_although_handlers_of_signals_try_to_close_it_too(
    pair: Pair, interrupted: Callable[..., None]
) -> None:
    _publisher, reader = pair

    def handle() -> None:
        try:
            reader.close()
        except slackline.OutOfTurn:
            pass

    interrupted(handle, 0.05)
    closing = threading.Timer(0.6, reader.close)
    closing.start()
    begun = time.monotonic()
    with pytest.raises(slackline.OutOfTurn, match="is closed"):
        reader.pull(min_version=9, timeout=60)
    assert time.monotonic() - begun < 30
    closing.join()


@pytest.mark.parametrize("call", ["step", "flush"])
def test_closing_a_worker_ends_the_calls_of_other_threads_that_wait(worker: slackline.Worker, call: str) -> None:
    waits: dict[str, Call] = {"step": lambda: worker.step(timeout=60), "flush": lambda: worker.flush(timeout=60)}
    closed_beside(waits[call], worker.close)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_the_exception_of_the_block_of_a_step_comes_out_although_its_worker_is_gone(end: str, python: Any) -> None:
    child = python(
        """
        server = slackline.Server({"a": np.zeros(10, "float32")}, transport="tcp")
        print(server.address)
        sys.stdin.read()
        """
    )
    with slackline.Worker([child.stdout.readline().strip()]) as worker:
        with pytest.raises(ZeroDivisionError):
            with worker.step() as step:
                if end == "kill":
                    child.kill()
                    with pytest.raises(slackline.PeerGone):
                        while not step.should_stop:
                            pass
                else:
                    worker.close()
                1 / 0
        # The step has ended all the same.
        with pytest.raises(slackline.OutOfTurn):
            step.parameters["a"].numpy()


def test_a_step_whose_worker_was_closed_in_its_block_says_so() -> None:
    with slackline.Server({"a": np.zeros(10, "float32")}) as server:
        with slackline.Worker([server.address]) as worker:
            with pytest.raises(slackline.OutOfTurn, match="the worker is closed"):
                with worker.step():
                    worker.close()


def test_a_step_that_has_ended_says_so_while_another_call_waits() -> None:
    outcome: list[str] = []
    with slackline.Server({"a": np.zeros(10, "float32")}, scheme="bsp", workers=2) as server:
        with slackline.Worker([server.address]) as worker, slackline.Worker([server.address]):
            with worker.step() as ended:
                ended.publish()

            def wait() -> None:
                with pytest.raises(slackline.OutOfTurn, match="closed"):
                    worker.step(timeout=60)
                outcome.append("closed")

            waiting = threading.Thread(target=wait)
            waiting.start()
            time.sleep(0.3)
            with pytest.raises(slackline.OutOfTurn, match="this step has ended"):
                _ = ended.should_stop
            # It has not waited for the other call.
            assert waiting.is_alive() and not outcome
            worker.close()
            waiting.join(30)
    assert outcome == ["closed"]


def test_a_step_that_has_ended_does_not_answer_for_the_next_one() -> None:
    with slackline.Server({"a": np.zeros(10, "float32")}) as server, slackline.Worker([server.address]) as worker:
        with worker.step() as ended:
            assert not ended.should_stop
            ended.publish()
        with worker.step() as step:
            assert not step.should_stop
            with pytest.raises(slackline.OutOfTurn, match="this step has ended"):
                _ = ended.should_stop
