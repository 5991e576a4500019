"""Objects that threads share, with a GIL or without: whole versions, or errors of the package; no crash, no hang."""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]
Work = Callable[[], object]


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Ends the tests if threads wait for each other, even with the interpreter held."""
    faulthandler.dump_traceback_later(40, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def together(*works: Work, seconds: float = 1.0) -> None:
    """Does each work in a thread of its own, again and again, and raises the first error of any of them."""
    errors: list[BaseException] = []
    until = time.monotonic() + seconds

    def repeat(work: Work) -> None:
        try:
            while time.monotonic() < until and not errors:
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_a_thread_that_calls_in_a_loop_lets_others_in(pair: Pair) -> None:
    _publisher, reader = pair
    is_over = threading.Event()

    def loop() -> None:
        while not is_over.is_set():
            reader.latest()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        for _ in range(20):
            reader.latest(timeout=20)
            assert reader.epoch != 0
    finally:
        is_over.set()
        thread.join()


def test_a_program_ends_though_a_daemon_thread_is_in_a_call_of_what_is_closed_last(pair: Pair) -> None:
    publisher, _reader = pair
    program = """
import sys, threading, time
import slackline

class Weights:
    def __init__(self):
        self.reader = slackline.Reader(sys.argv[1])
        threading.Thread(target=self.wait, daemon=True).start()
        time.sleep(0.3)

    def wait(self):
        self.reader.pull(min_version=99, timeout=1000)

    def __del__(self):
        self.reader.close()

# It is torn down late.
sys.weights = Weights()
"""
    done = subprocess.run([sys.executable, "-c", program, publisher.address], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr


def turned_away(work: Work, *causes: str) -> bool:
    """True if the work was done, and False if it was out of turn for one of these causes, which others' calls are."""
    try:
        work()
    except slackline.OutOfTurn as error:
        assert any(cause in str(error) for cause in causes), error
        return False
    return True


def publishing(publisher: slackline.Publisher) -> Work:
    """Publishes versions that have their number in each element."""
    return lambda: publisher.publish(version(publisher.version + 1))


def assert_whole(snapshot: slackline.Snapshot) -> None:
    for name in ("a", "b"):
        assert (snapshot[name].numpy() == snapshot.version).all(), (snapshot, name)


def test_importing_the_package_enables_no_gil() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has a GIL")
    code = "import sys, slackline; sys.exit(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True, timeout=60)


def test_threads_that_share_a_reader_get_whole_versions(pair: Pair) -> None:
    publisher, reader = pair
    handed: queue.SimpleQueue[slackline.Snapshot] = queue.SimpleQueue()

    def pull() -> None:
        snapshot = reader.pull(max_staleness=1)
        assert_whole(snapshot)
        handed.put(snapshot)

    def pull_into() -> None:
        assert_whole(reader.pull(version(0)))

    def drop() -> None:
        # It was pulled by another thread, and its memory is for the next pull once it is gone.
        try:
            assert_whole(handed.get(timeout=0.05))
        except queue.Empty:
            pass

    def ask() -> None:
        assert reader.latest() <= publisher.version and reader.epoch == publisher.epoch

    together(publishing(publisher), pull, pull, pull_into, drop, drop, ask, gc.collect)


def test_threads_that_pin_prefetch_and_pull_get_whole_versions() -> None:
    with slackline.Publisher(version(0), frames=4) as publisher, slackline.Reader(publisher.address) as reader:

        def pin() -> None:
            with reader.pin() as snapshot:
                assert_whole(snapshot)

        def prefetch() -> None:
            reader.prefetch(timeout=5)
            assert_whole(reader.swap(timeout=10))

        def attempt(work: Work) -> Work:
            return lambda: turned_away(work, "is pinned", "is staged")

        pulls = [attempt(lambda: assert_whole(reader.pull())) for _ in range(2)]
        together(publishing(publisher), *pulls, attempt(pin), attempt(pin), attempt(prefetch), attempt(prefetch))


def test_a_pin_that_was_left_is_in_the_way_of_no_later_call() -> None:
    with slackline.Publisher(version(0), frames=4) as publisher, slackline.Reader(publisher.address) as reader:

        def pin_and_pull() -> None:
            with reader.pin() as snapshot:
                assert_whole(snapshot)
            assert_whole(reader.pull())

        together(publishing(publisher), pin_and_pull, reader.latest, reader.latest, reader.latest)


def test_a_reader_is_not_closed_under_a_pin_that_comes_meanwhile() -> None:
    outcomes: list[tuple[bool, bool]] = []
    with slackline.Publisher(version(0), frames=4) as publisher:
        publisher.publish(version(1))
        for number in range(200):
            reader, start = slackline.Reader(publisher.address), threading.Barrier(2)
            pinned: list[bool] = []

            def pin() -> None:
                def hold() -> None:
                    with reader.pin() as snapshot:
                        closing.join()
                        assert_whole(snapshot)

                start.wait()
                pinned.append(turned_away(hold, "is closed"))

            def close() -> None:
                start.wait()
                time.sleep(number * 1e-6)
                closed.append(turned_away(reader.close, "is pinned"))

            closed: list[bool] = []
            pinning, closing = threading.Thread(target=pin), threading.Thread(target=close)
            pinning.start()
            closing.start()
            pinning.join()
            closing.join()
            reader.close()
            outcomes.append((pinned[0], closed[0]))
    assert set(outcomes) <= {(True, False), (False, True)}


def test_a_close_that_is_turned_away_disturbs_no_other_call() -> None:
    with slackline.Publisher(version(0)) as publisher, slackline.Reader(publisher.address) as reader:
        with reader.pin():
            close: Work = lambda: turned_away(reader.close, "is pinned")  # noqa: E731
            together(close, close, reader.latest, reader.latest)
        assert reader.pull().version == 0


def test_a_call_that_is_out_of_turn_holds_no_other_one_up(pair: Pair) -> None:
    _publisher, reader = pair
    swap = lambda: turned_away(reader.swap, "no version is staged")  # noqa: E731
    together(*[swap] * 6, gc.collect)


def test_a_reader_is_closed_beside_a_pull_a_prefetch_and_a_swap(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=9)

    def until_closed(work: Work) -> Work:
        def call() -> None:
            try:
                turned_away(work, "is closed", "no version is staged", "is staged already")
            except slackline.DeadlineError:
                pass

        return call

    waits = [
        lambda: reader.pull(min_version=9, timeout=1),
        lambda: reader.swap(timeout=0.01),
        lambda: reader.prefetch(min_version=9, timeout=0.01),
    ]
    together(*map(until_closed, waits), until_closed(reader.close), publishing(publisher))
    reader.close()
    with pytest.raises(slackline.OutOfTurn):
        reader.latest()


def test_views_of_a_pin_come_and_go_in_threads_until_it_ends() -> None:
    with slackline.Publisher(version(0)) as publisher, slackline.Reader(publisher.address) as reader:
        for number in range(1, 6):
            publisher.publish(version(number))
            pinned: list[slackline.Snapshot] = []

            def look() -> None:
                if pinned:
                    snapshot = pinned[0]
                    ways: list[Work] = [
                        lambda: memoryview(snapshot["b"]).tolist() == [snapshot.version] * 3,
                        lambda: snapshot["a"].numpy()[7],
                        lambda: snapshot["a"].__dlpack__(max_version=(1, 0)),
                        snapshot.certificate,
                    ]
                    for way in ways:
                        turned_away(way, "its pin has ended")

            def pin() -> None:
                try:
                    with reader.pin() as snapshot:
                        pinned[:] = [snapshot]
                        time.sleep(0.01)
                except BufferError:
                    pass  # a view is there at the end of the block: the pin ends with it

            together(look, look, look, lambda: turned_away(pin, "is pinned"), seconds=0.2)
            pinned.clear()
        # All of them are let go.
        for number in range(6, 12):
            publisher.publish(version(number), timeout=10)
            assert_whole(reader.pull())


def test_threads_that_share_a_publisher_publish_each_version_once(pair: Pair) -> None:
    publisher, reader = pair
    numbers: list[int | None] = []

    def publish() -> None:
        numbers.append(publisher.publish(version(7)))

    def frame() -> None:
        frame = publisher.frame()
        frame["a"][...], frame["b"][...] = 7, 7
        leave: Work = lambda: turned_away(lambda: frame.__exit__(None, None, None), "the frame has ended")  # noqa: E731
        leaving = threading.Thread(target=leave)
        leaving.start()
        leave()
        leaving.join()
        numbers.append(frame.version)

    def read() -> None:
        snapshot = reader.pull(min_version=1)
        assert (snapshot["a"].numpy() == 7).all() and (snapshot["b"].numpy() == 7).all()

    works = [lambda work=work: turned_away(work, "another frame is open") for work in (publish, publish, frame, frame)]
    together(*works, read)
    assert sorted(numbers, key=lambda number: number or 0) == list(range(1, publisher.version + 1))


def test_threads_that_share_a_worker_publish_their_own_gradients() -> None:
    with slackline.Server({"a": np.zeros(1000, "float32")}, scheme="asp", workers=1, learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:
            published: list[int] = []

            def step() -> None:
                with worker.step() as step:
                    step.gradient["a"][...] = -1.0
                    step.publish()
                published.append(step.clock)

            together(*[lambda: turned_away(step, "a step is open")] * 3)
            worker.flush()
            assert len(published) == len(set(published)) == server.status.folded
            assert (server.parameters()["a"].numpy() == len(published)).all()


def test_a_capsule_that_threads_share_is_taken_once() -> None:
    class Shared:
        def __init__(self) -> None:
            self.capsule: Any = np.zeros(1000, "float32").__dlpack__(max_version=(1, 0))

        def __dlpack__(self, **_options: object) -> Any:
            return self.capsule

    for _ in range(200):
        array, start, taken = Shared(), threading.Barrier(2), queue.SimpleQueue[bool]()

        def take() -> None:
            start.wait()
            try:
                taken.put(len(slackline.Publisher({"a": array}).metadata) == 1)
            except Exception:
                taken.put(False)

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted((taken.get(), taken.get())) == [False, True]
