"""Views: the buffer protocol, DLPack and numpy look at one memory, which says when it may not be looked at."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from conftest import version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]


@pytest.fixture
def transport() -> str:
    """Pins are of shared memory."""
    return "shm"


def test_views_raise_after_their_pin(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with reader.pin() as snapshot:
        view = snapshot["a"]
        assert snapshot.version == 1 and float(view.numpy().sum()) == 1000
    for look in (
        view.numpy,
        lambda: np.asarray(view),
        lambda: memoryview(view),
        lambda: view.__dlpack__(max_version=(1, 0)),
        lambda: view.__dlpack__(copy=True),
        lambda: snapshot["a"],
        lambda: list(snapshot.items()),
    ):
        with pytest.raises(slackline.OutOfTurn):
            look()
    assert (view.name, view.shape, view.dtype, view.nbytes) == ("a", (1000,), "float32", 4000)
    assert reader.pull().version == 1


def test_an_array_that_outlives_its_pin_is_an_error_and_keeps_the_version(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with pytest.raises(BufferError):
        with reader.pin() as snapshot:
            kept = snapshot["a"].numpy()
    for value in range(2, 8):
        publisher.publish(version(value))
        assert (kept == 1).all(), "the frame was written under an array"
    for call in (reader.pull, reader.pin, reader.close):
        with pytest.raises(slackline.OutOfTurn):
            call()
    assert reader.latest() == 7
    del kept
    assert reader.pull().version == 7


def test_an_exception_in_a_pin_comes_out_although_arrays_live(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with pytest.raises(ZeroDivisionError):
        with reader.pin() as snapshot:
            kept = snapshot["a"].numpy()
            1 / 0
    del kept
    gc.collect()
    assert reader.pull().version == 1


def test_a_pinned_version_stays_as_it_is_while_the_publisher_goes_on(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with reader.pin() as snapshot:
        for value in range(2, 9):
            publisher.publish(version(value))
            assert (snapshot["a"].numpy() == 1).all() and (snapshot["b"].numpy() == 1).all()
    assert reader.pull().version == 8


def test_numpy_honours_the_flag_for_read_only_memory(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    snapshot = reader.pull()
    for array in (snapshot["a"].numpy(), np.asarray(memoryview(snapshot["a"])), np.from_dlpack(snapshot["a"])):
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array[0] = 2
        with pytest.raises(ValueError):
            array.flags.writeable = True
    with pytest.raises(ValueError):
        snapshot["a"][0] = 2
    assert snapshot["a"].readonly and memoryview(snapshot["a"]).readonly
    with publisher.frame() as frame:
        assert not frame["a"].readonly
        np.from_dlpack(frame["a"])[:] = 3
        memoryview(frame["b"])[0] = 7
    assert (reader.pull()["a"].numpy() == 3).all() and reader.pull()["b"].numpy()[0] == 7


def test_all_ways_look_at_one_memory(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    view = reader.pull()["a"]
    address = view.numpy().ctypes.data
    assert address % 256 == 0
    assert np.asarray(memoryview(view)).ctypes.data == address
    assert np.from_dlpack(view).ctypes.data == address
    shaped = memoryview(view)
    assert (shaped.format, shaped.itemsize, shaped.shape, shaped.strides) == ("f", 4, (1000,), (4,))


def test_dlpack_without_a_version_refuses_read_only_memory_and_copies_if_asked(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    view = reader.pull()["a"]
    with pytest.raises(BufferError):
        view.__dlpack__()
    assert '"dltensor"' in repr(view.__dlpack__(copy=True))
    assert '"dltensor_versioned"' in repr(view.__dlpack__(max_version=(1, 0)))
    copied = np.from_dlpack(view, copy=True)
    copied[:] = 7
    assert (view.numpy() == 1).all()
    assert view.__dlpack_device__() == (1, 0)
    for wrong in ({"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            view.__dlpack__(max_version=(1, 0), **wrong)


def test_capsules_that_are_not_taken_are_given_back(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with reader.pin() as snapshot:
        capsules = [snapshot["a"].__dlpack__(max_version=(1, 0)) for _ in range(10)]
        del capsules
    assert reader.pull().version == 1


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_ten_thousand_views_leave_nothing_behind(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    snapshot = reader.pull()

    def look(times: int) -> None:
        for _ in range(times):
            view = snapshot["a"]
            view.numpy()
            np.from_dlpack(view)
            memoryview(view)
            view.__dlpack__(max_version=(1, 0))
            view.__dlpack__(copy=True)

    look(1000)
    gc.collect()
    before, references, objects = resident(), sys.getrefcount(snapshot), len(gc.get_objects())
    look(10000)
    gc.collect()
    assert sys.getrefcount(snapshot) == references
    assert len(gc.get_objects()) < objects + 100
    # A view that leaked its copy would leave 40 MB.
    assert resident() - before < 4 << 20


def test_ten_thousand_snapshots_use_their_memory_again(pair: Pair) -> None:
    publisher, reader = pair
    before = resident()
    for value in range(1, 10001):
        publisher.publish(version(value))
        snapshot: Any = reader.pull()
    assert (snapshot["b"].numpy() == 10000).all()
    assert resident() - before < 4 << 20


def test_the_frame_of_a_publisher_that_was_closed_is_not_published(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as publisher:
        with slackline.Reader(publisher.address) as reader:
            with pytest.raises(slackline.OutOfTurn, match="the publisher was dropped"):
                with publisher.frame() as frame:
                    frame["a"].numpy()[:] = 1
                    publisher.close()
                    # Its memory and its address stay taken as long as the frame is open.
                    assert reader.pull().version == 0
                    with pytest.raises(slackline.Error):
                        slackline.Publisher(version(0), address=publisher.address)
            with pytest.raises(slackline.PeerGone):
                reader.pull(min_version=1, timeout=20)
    slackline.Publisher(version(0), address=publisher.address).close()
