"""Objects that sleep while they wait are woken by what they wait for."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import slackline


# A busy machine lets a thread that polls rest no more often than it has its turn: one of these has to show it.
ATTEMPTS = 5


def rests(wait: Callable[[], object]) -> int:
    """The number of times that this thread gave the processor away while it waited in vain."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    with pytest.raises(slackline.DeadlineError):
        wait()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


@pytest.mark.parametrize("way", ["pull", "pin", "prefetch"])
def test_a_reader_that_sleeps_is_woken_by_each_version(transport: str, way: str) -> None:
    if (transport, way) == ("tcp", "pin"):
        pytest.skip("pins are of shared memory")
    arrays = {"w": np.zeros(1000, "float32")}
    with slackline.Publisher(arrays, transport=transport) as publisher:
        with slackline.Reader(publisher.address, idle="sleep") as reader:
            for number in range(1, 30):
                late = threading.Timer(0.001 * (number % 5), publisher.publish, [arrays])
                late.start()
                if way == "pin":
                    with reader.pin(min_version=number, timeout=30) as pinned:
                        assert pinned.version == number
                elif way == "prefetch":
                    reader.prefetch(min_version=number)
                    assert reader.swap(timeout=30).version == number
                else:
                    assert reader.pull(min_version=number, timeout=30).version == number
                late.join()


def test_a_reader_that_sleeps_looks_far_less_often(transport: str) -> None:
    with slackline.Publisher({"w": np.zeros(8, "float32")}, transport=transport) as publisher:
        polling = slackline.Reader(publisher.address)
        sleeping = slackline.Reader(publisher.address, idle="sleep")
        counted = []
        for _ in range(ATTEMPTS):
            polls = rests(lambda: polling.pull(min_version=1, timeout=1.0))
            sleeps = rests(lambda: sleeping.pull(min_version=1, timeout=1.0))
            counted.append((sleeps, polls))
            if sleeps < polls / 2:
                return
        raise AssertionError(f"{counted}")


def test_a_worker_and_a_server_that_sleep_train_and_answer(transport: str) -> None:
    counted = []
    for _ in range(ATTEMPTS):
        rested = rests_of_a_worker(transport)
        counted.append(rested)
        if rested["sleep"] < rested["poll"] / 2:
            return
    raise AssertionError(f"{counted}")


def rests_of_a_worker(transport: str) -> dict[str, int]:
    """The rests of a worker that waits for another one, by the way to wait, in a job that goes well."""
    rested, asked = {}, {}
    for idle in ("poll", "sleep"):
        initial = {"w": np.ones(8, "float32")}
        with slackline.Server(initial, workers=2, learning_rate=0.5, transport=transport, idle=idle) as server:
            workers = [slackline.Worker([server.address], rank=rank, idle=idle) for rank in range(2)]

            def run(worker: slackline.Worker, clocks: int) -> None:
                for _ in range(clocks):
                    with worker.step() as step:
                        step.gradient["w"][...] = step.parameters["w"].numpy()
                        step.publish()

            other = threading.Thread(target=run, args=(workers[1], 3))
            other.start()
            run(workers[0], 4)
            other.join()
            # Its fifth clock waits for the other worker's fourth.
            rested[idle] = rests(lambda: workers[0].step(timeout=1.0))
            asked[idle] = 0.0
            for _ in range(20):
                time.sleep(0.005)
                begun = time.monotonic()
                assert server.status.version == 3
                asked[idle] += time.monotonic() - begun
            assert server.parameters()["w"].numpy()[0] == 0.125
            for worker in workers:
                worker.close()
            server.wait(left=2)
    # A call waits for one sleep, of 20 ms, at most; the rest is for a machine that is busy.
    assert 0.05 < asked["sleep"] < 20, f"{asked}"
    return rested


RESTING = """
tables = slackline.Tables()
options = {"idle": idle} if idle else {}
def begin(number):
    table = {"w": np.zeros(8, "float32")}
    return tables.publisher(str(number), table, **options) if named else slackline.Publisher(table, **options)
publishers = [begin(number) for number in range(30)]
time.sleep(0.5)
before = time.process_time()
time.sleep(3)
print(time.process_time() - before)
"""


@pytest.mark.parametrize("named", [True, False])
def test_publishers_sleep_by_default_and_take_far_less_of_a_processor(
    named: bool, python: Callable[..., Any]
) -> None:
    # Side by side, so that a machine that is busy is so for both.
    children = {idle: python(RESTING, idle=idle, named=named) for idle in ("poll", None)}
    seconds = {idle: float(child.stdout.read()) for idle, child in children.items()}
    assert seconds[None] < seconds["poll"] / 2, f"{seconds}"


def test_a_way_to_idle_that_there_is_not_is_refused() -> None:
    table = {"w": np.zeros(8, "float32")}
    with slackline.Tables() as tables:
        for begin in (
            lambda: slackline.Reader("@none-listens-here", idle="doze"),
            lambda: slackline.Publisher(table, idle="doze"),
            lambda: tables.publisher("w", table, idle="doze"),
        ):
            with pytest.raises(slackline.BadOption, match="poll or sleep"):
                begin()
