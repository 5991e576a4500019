"""Publishers and readers: each read is one version, whole, as fresh as asked for."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from typing import Any

import numpy as np
import pytest
from conftest import told, version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]

NEVER_PAUSES = """
arrays = [{"a": np.full(50000, value, "float64"), "b": np.full(7, value, "float64")} for value in range(8)]
publisher = slackline.Publisher(arrays[0], transport=transport)
print(publisher.address)
version = 0
while True:
    version = publisher.publish(arrays[(version + 1) % 8])
"""


def assert_whole(snapshot: Mapping[str, slackline.ArrayView], number: int) -> None:
    for name in ("a", "b"):
        values = snapshot[name].numpy()
        assert (values == number % 8).all(), f"version {number} has {np.unique(values)}"


@pytest.mark.parametrize("way", ["pull", "into", "pin", "prefetch"])
def test_no_read_is_torn_beside_a_publisher_that_never_pauses(transport: str, way: str, python: Any) -> None:
    if (transport, way) == ("tcp", "pin"):
        pytest.skip("pins are of shared memory")
    child = python(NEVER_PAUSES, transport=transport)
    reader = slackline.Reader(child.stdout.readline().strip())
    into = {"a": np.zeros(50000), "b": np.zeros(7)}
    last, reads, until = 0, 0, time.monotonic() + 1.5
    while time.monotonic() < until or reads < 3:
        if way == "pin":
            with reader.pin() as snapshot:
                assert_whole(snapshot, snapshot.version)
        elif way == "prefetch":
            reader.prefetch(min_version=last + 1)
            snapshot = reader.swap()
            assert_whole(snapshot, snapshot.version)
        else:
            snapshot = reader.pull(into if way == "into" else None)
            assert_whole(snapshot, snapshot.version)
        assert snapshot.version >= last
        last, reads = snapshot.version, reads + 1
    assert last > 3


def test_a_version_comes_back_as_it_was_published(pair: Pair) -> None:
    publisher, reader = pair
    assert publisher.version == 0
    assert publisher.publish(version(5)) == 1
    snapshot = reader.pull()
    assert (snapshot.version, snapshot.staleness, snapshot.epoch) == (1, 0, publisher.epoch)
    assert list(snapshot) == ["a", "b"] and len(snapshot) == 2 and "a" in snapshot and "c" not in snapshot
    np.testing.assert_array_equal(snapshot["a"].numpy(), np.full(1000, 5, "float32"))
    np.testing.assert_array_equal(snapshot.numpy("b"), [5, 5, 5])
    assert isinstance(snapshot, Mapping) and snapshot.get("c") is None
    with pytest.raises(KeyError):
        snapshot["c"]
    assert [(name, view.shape) for name, view in snapshot.items()] == [("a", (1000,)), ("b", (3,))]
    assert [(spec.name, spec.dtype, spec.shape, spec.nbytes) for spec in reader.metadata] == [
        ("a", "float32", (1000,), 4000),
        ("b", "int64", (3,), 24),
    ]


def test_snapshots_frames_and_gradients_have_the_views_of_a_mapping(pair: Pair) -> None:
    def look(tensors: Mapping[str, slackline.ArrayView]) -> None:
        views = (tensors.keys(), tensors.values(), tensors.items())
        assert all(map(isinstance, views, (KeysView, ValuesView, ItemsView)))
        assert list(tensors.keys()) == ["a", "b"] and [view.name for view in tensors.values()] == ["a", "b"]
        assert [(name, view.name) for name, view in tensors.items()] == [("a", "a"), ("b", "b")]
        assert tensors.keys() == version(0).keys() and tensors.keys() - {"a"} == {"b"}

    publisher, reader = pair
    with publisher.frame() as frame:
        look(frame)
    look(reader.pull())
    with slackline.Server({"a": np.ones(3, "float32"), "b": np.ones(2, "float32")}) as server:
        with slackline.Worker([server.address]) as worker, worker.step() as step:
            look(step.gradient)
            look(step.parameters)


def test_a_snapshot_stays_as_it_is_while_newer_ones_are_pulled(pair: Pair) -> None:
    publisher, reader = pair
    snapshots = []
    for value in range(1, 6):
        publisher.publish(version(value))
        snapshots.append(reader.pull())
    for value, snapshot in enumerate(snapshots, 1):
        assert snapshot.version == value
        assert (snapshot["a"].numpy() == value).all()


def test_a_version_that_is_fresh_enough_is_not_copied_again(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    first = reader.pull()["a"].numpy()
    publisher.publish(version(2))
    again = reader.pull(max_staleness=1)
    assert (again.version, again.staleness) == (1, 1)
    assert np.shares_memory(again["a"].numpy(), first)
    newer = reader.pull(max_staleness=0)
    assert (newer.version, newer.staleness) == (2, 0)
    assert not np.shares_memory(newer["a"].numpy(), first)


def test_a_version_is_waited_for_and_the_wait_has_a_deadline(pair: Pair) -> None:
    publisher, reader = pair
    begun = time.monotonic()
    with pytest.raises(slackline.DeadlineError) as caught:
        reader.pull(min_version=1, timeout=0.25)
    assert 0.2 < time.monotonic() - begun < 10
    assert isinstance(caught.value, TimeoutError) and caught.value.is_retryable
    assert caught.value.operation == "waiting for a version"
    publisher.publish(version(1))
    assert reader.latest() == 1
    assert reader.pull(min_version=1, max_staleness=5).version == 1


@pytest.mark.parametrize("way", ["pull", "version", "into", "pin", "swap"])
def test_a_read_that_is_late_tells_the_newest_version(pair: Pair, transport: str, way: str) -> None:
    if (transport, way) == ("tcp", "pin"):
        pytest.skip("pins are of shared memory")
    publisher, reader = pair
    for value in range(1, 8):
        publisher.publish(version(value))

    def swap() -> object:
        until = time.monotonic() + 20
        while True:
            try:
                return reader.swap(timeout=0)
            except slackline.DeadlineError as error:
                # The thread of the prefetch may not have ended, or not have had an answer before it did.
                if "the newest is 7" in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    if way == "swap":
        reader.prefetch(min_version=99, timeout=0.1)
    calls: dict[str, Callable[[float], object]] = {
        "pull": lambda timeout: reader.pull(min_version=99, timeout=timeout),
        "version": lambda timeout: reader.pull(version=99, timeout=timeout),
        "into": lambda timeout: reader.pull(version(0), min_version=99, timeout=timeout),
        "pin": lambda timeout: reader.pin(min_version=99, timeout=timeout).__enter__(),
        "swap": lambda _timeout: swap(),
    }
    told(calls[way], slackline.DeadlineError, "needed version 99, the newest is 7; ")


def test_a_pull_fills_the_arrays_of_the_caller(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(4))
    into = version(0)
    snapshot = reader.pull(into)
    assert (into["a"] == 4).all() and (into["b"] == 4).all()
    assert np.shares_memory(snapshot["a"].numpy(), into["a"])
    frozen = version(0)
    frozen["a"].flags.writeable = False
    for wrong in (frozen, {"a": into["a"]}, {**into, "a": np.zeros(2000, "float32")[::2]}, {**into, "c": into["a"]}):
        with pytest.raises(slackline.LayoutMismatch):
            reader.pull(wrong)


def test_an_exception_in_a_frame_leaves_the_newest_version_served(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with pytest.raises(ZeroDivisionError):
        with publisher.frame() as frame:
            frame["a"][...] = 9
            1 / 0
    assert publisher.version == reader.latest() == 1
    assert (reader.pull()["a"].numpy() == 1).all()
    with publisher.frame() as frame:
        frame["a"][...] = 2
        frame["b"][...] = [2, 2, 2]
    assert frame.version == publisher.version == 2
    assert (reader.pull()["a"].numpy() == 2).all()


def test_a_frame_that_an_array_still_looks_at_is_not_published(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    with pytest.raises(BufferError):
        with publisher.frame() as frame:
            kept = frame["a"].numpy()
            kept[...] = 9
    with pytest.raises(slackline.OutOfTurn):
        publisher.publish(version(2))
    assert (reader.pull()["a"].numpy() == 1).all()
    del kept
    assert publisher.publish(version(2)) == 2


def test_an_array_that_outlives_a_frame_that_failed_is_named_to_later_calls(pair: Pair) -> None:
    publisher, _reader = pair
    with pytest.raises(ValueError, match="a bad batch"):
        with publisher.frame() as frame:
            array = frame["a"].numpy()
            raise ValueError("a bad batch")
    for call in (publisher.frame, lambda: publisher.publish(version(1))):
        with pytest.raises(slackline.OutOfTurn, match="1 arrays still look at a frame that has ended; delete them"):
            call()
    del array
    with publisher.frame():
        with pytest.raises(slackline.OutOfTurn, match="another frame is open"):
            publisher.publish(version(1))
    assert publisher.publish(version(2)) == 2


def test_arrays_that_do_not_fit_the_table_publish_nothing(pair: Pair) -> None:
    publisher, _reader = pair
    good = version(1)
    for wrong in (
        {"a": good["a"]},
        {**good, "c": good["a"]},
        {**good, "a": good["a"].astype("float64")},
        {**good, "a": good["a"].reshape(10, 100)},
        {**good, "a": "text"},
        {**good, "a": good["a"].astype(">f4")},
    ):
        with pytest.raises(slackline.LayoutMismatch) as caught:
            publisher.publish(wrong)
        assert isinstance(caught.value, ValueError) and caught.value.remedy
    assert publisher.version == 0
    for empty in ([], [slackline.TensorSpec("a", "float32", (0,))]):
        with pytest.raises(slackline.LayoutMismatch):
            slackline.Publisher(empty)


def test_arrays_need_not_be_contiguous(pair: Pair) -> None:
    publisher, reader = pair
    wide = np.arange(4000, dtype="float32")
    publisher.publish({"a": wide[1::4], "b": np.arange(3, dtype="int64")[::-1]})
    snapshot = reader.pull()
    np.testing.assert_array_equal(snapshot["a"].numpy(), 1 + 4 * np.arange(1000))
    np.testing.assert_array_equal(snapshot["b"].numpy(), [2, 1, 0])


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64", "complex128"])
def test_an_array_is_published_in_its_own_order_whatever_its_strides(dtype: str) -> None:
    whole = np.arange(3 * 40 * 50).reshape(3, 40, 50).astype(dtype)
    arrays = {f"{order}": whole.transpose(order) for order in itertools.permutations(range(3))}
    arrays |= {"part": whole[1:, 3:, 5:40], "every other": whole[:, ::2, ::3], "back": whole[::-1, ::-1, ::-1]}
    arrays |= {"same": np.broadcast_to(whole[:, :1, :], (3, 7, 50)), "turned": whole[:, 2:39, :33].T}
    with slackline.Publisher(arrays) as publisher, slackline.Reader(publisher.address) as reader:
        publisher.publish(arrays)
        snapshot = reader.pull()
        for name, array in arrays.items():
            np.testing.assert_array_equal(snapshot[name].numpy(), array, name)


def test_a_transposed_matrix_is_published_in_its_own_order(transport: str) -> None:
    table = [slackline.TensorSpec("m", "int32", (3, 2)), slackline.TensorSpec("s", "float64", ())]
    with slackline.Publisher(table, transport=transport) as publisher:
        publisher.publish({"m": np.array([[1, 2, 3], [4, 5, 6]], "int32").T, "s": np.array(2.5)})
        snapshot = slackline.Reader(publisher.address).pull()
        np.testing.assert_array_equal(snapshot["m"].numpy(), [[1, 4], [2, 5], [3, 6]])
        assert snapshot["s"].numpy() == 2.5 and snapshot["s"].shape == ()


def test_a_staged_version_is_swapped_in_once_it_is_there(pair: Pair) -> None:
    publisher, reader = pair
    with pytest.raises(slackline.OutOfTurn):
        reader.swap()
    reader.prefetch(min_version=1)
    with pytest.raises(slackline.OutOfTurn):
        reader.prefetch()
    with pytest.raises(slackline.DeadlineError):
        reader.swap(timeout=0)
    publisher.publish(version(3))
    snapshot = reader.swap()
    assert snapshot.version == 1 and (snapshot["b"].numpy() == 3).all()


def test_a_version_is_staged_by_its_number(pair: Pair) -> None:
    publisher, reader = pair
    for value in range(1, 4):
        publisher.publish(version(value))
    reader.prefetch(version=2)
    snapshot = reader.swap()
    assert snapshot.version == 2 and (snapshot["b"].numpy() == 2).all()
    for value in range(4, 9):
        publisher.publish(version(value))
    reader.prefetch(version=3)
    with pytest.raises(slackline.StaleError):
        reader.swap()


def test_closed_objects_say_so(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    snapshot = reader.pull()
    publisher.close()
    reader.close()
    reader.close()
    for call in (reader.pull, reader.latest, reader.pin, reader.prefetch, lambda: publisher.version):
        with pytest.raises(slackline.OutOfTurn):
            call()
    assert (snapshot["a"].numpy() == 1).all()


def test_frames_that_readers_pin_make_a_publisher_wait_and_say_so() -> None:
    with slackline.Publisher(version(0), frames=2) as publisher:
        with slackline.Reader(publisher.address) as reader:
            publisher.publish(version(1))
            with reader.pin():
                publisher.publish(version(2))
                with pytest.raises(slackline.FramesPinned) as caught:
                    publisher.publish(version(3), timeout=0.2)
                assert caught.value.is_retryable and isinstance(caught.value, slackline.DeadlineError)
                assert publisher.version == 2
            publisher.publish(version(3))


def test_bad_options_are_told_by_their_class() -> None:
    for call in (
        lambda: slackline.Publisher(version(0), transport="pigeon"),
        lambda: slackline.Publisher(version(0), transport="tcp", address="@name"),
        lambda: slackline.Publisher(version(0), transport="verbs"),
        lambda: slackline.Publisher(version(0), address="nonsense"),
        lambda: slackline.Reader("nonsense"),
        lambda: slackline.Reader("@x", timeout=-1),
    ):
        with pytest.raises(slackline.BadOption):
            call()


def test_an_address_of_several_reaches_the_first_that_answers() -> None:
    with slackline.Publisher(version(0), address="@slackline-test-several,127.0.0.1:0") as publisher:
        publisher.publish(version(1))
        with slackline.Reader("@no-such-publisher," + publisher.address) as reader:
            assert reader.pull().version == 1


def test_an_address_without_a_publisher_is_told_by_the_deadline() -> None:
    begun = time.monotonic()
    with pytest.raises(slackline.PeerGone) as caught:
        slackline.Reader("@no-such-publisher", timeout=0.3)
    assert isinstance(caught.value, ConnectionError) and 0.2 < time.monotonic() - begun < 10


def test_a_reader_waits_for_a_publisher_that_comes_later(python: Callable[..., Any]) -> None:
    address = f"@slackline-test-{time.time_ns()}"
    child = python("print(slackline.Reader(address).pull(min_version=1).version)", address=address)
    time.sleep(0.2)
    with slackline.Publisher(version(0), address=address) as publisher:
        publisher.publish(version(1))
        assert child.stdout.readline() == "1\n"


def test_step_label_and_time_travel_with_a_version(pair: Pair) -> None:
    publisher, reader = pair
    before = time.time_ns()
    publisher.publish(version(1), step=2**63, label=b"a digest, or a name")
    snapshot = reader.pull()
    assert (snapshot.step, snapshot.label) == (2**63, b"a digest, or a name".ljust(32, b"\0"))
    assert before <= snapshot.published_ns <= time.time_ns()
    with publisher.frame(step=7) as frame:
        frame["a"][...] = 2
    assert (reader.pull().step, reader.pull().label) == (7, bytes(32))
    with pytest.raises(slackline.BadOption):
        publisher.publish(version(1), label=bytes(33))
    with pytest.raises(OverflowError):
        publisher.publish(version(1), step=-1)
    assert publisher.version == 2


def test_a_publisher_sees_what_its_readers_hold_and_waits_for_them(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    publisher.publish(version(2))
    with pytest.raises(slackline.DeadlineError):
        publisher.wait(2, readers=1, timeout=0.15)
    reader.pull()
    (status,) = publisher.wait(2)
    assert (status.holds, status.behind) == (2, 0)
    publisher.publish(version(3))
    (status,) = publisher.readers
    assert (status.holds, status.behind) == (2, 1)
    reader.pull(version(0))
    (status,) = publisher.wait(3)
    assert (status.holds, status.behind) == (3, 0)
    reader.close()
    until = time.monotonic() + 20
    while publisher.readers:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert publisher.wait(3) == []


def test_a_reader_that_comes_later_is_not_waited_for() -> None:
    begins, held = threading.Event(), list[list[slackline.ReaderStatus]]()
    with slackline.Publisher(version(0)) as publisher, slackline.Reader(publisher.address) as holding:
        gone = slackline.Reader(publisher.address)
        publisher.publish(version(1))
        holding.pull()

        def wait() -> None:
            begins.set()
            held.append(publisher.wait(1, timeout=60))

        waiting = threading.Thread(target=wait)
        waiting.start()
        begins.wait()
        time.sleep(0.5)
        assert waiting.is_alive()
        # A reader that holds no version comes as the one leaves that was waited for.
        with slackline.Reader(publisher.address):
            gone.close()
            waiting.join()
    assert held[0][0].holds == 1


def test_a_version_that_was_pinned_is_held_like_one_that_was_copied() -> None:
    with slackline.Publisher(version(0)) as publisher, slackline.Reader(publisher.address) as reader:
        for value in range(1, 6):
            publisher.publish(version(value))
            with reader.pin(min_version=value):
                (status,) = publisher.readers
                assert (status.holds, status.pins) == (value - 1 or None, value)
                # `wait` counts the pin itself.
                (status,) = publisher.wait(value, timeout=20)
                assert (status.holds, status.pins) == (value - 1 or None, value)
            (status,) = publisher.wait(value, timeout=20)
            assert status.holds == value


def test_a_part_of_the_table_is_read_alone(transport: str) -> None:
    matrix = np.arange(60, dtype="float32").reshape(6, 10)
    with slackline.Publisher({"m": matrix, "other": matrix}, transport=transport) as publisher:
        publisher.publish({"m": matrix, "other": -matrix})
        select = {"m": (slice(1, 3), slice(4, None)), "other": None}
        with slackline.Reader(publisher.address, select=select) as reader:
            snapshot = reader.pull()
            np.testing.assert_array_equal(snapshot["m"].numpy(), matrix[1:3, 4:])
            np.testing.assert_array_equal(snapshot["other"].numpy(), -matrix)
            into = {"m": np.zeros((2, 6), "float32"), "other": np.zeros((6, 10), "float32")}
            reader.pull(into)
            np.testing.assert_array_equal(into["m"], matrix[1:3, 4:])
        with slackline.Reader(publisher.address, select=["other"]) as reader:
            assert list(reader.pull()) == ["other"] and [spec.name for spec in reader.metadata] == ["other"]
        for wrong in (["none"], {"m": (slice(0, 1),)}, {"m": (slice(0, 6, 2), slice(None))}):
            with pytest.raises(slackline.LayoutMismatch):
                slackline.Reader(publisher.address, select=wrong)


def test_one_version_and_no_other_can_be_asked_for(pair: Pair) -> None:
    publisher, reader = pair
    for value in (1, 2):
        publisher.publish(version(value))
    snapshot = reader.pull(version=1)
    assert snapshot.version == 1 and (snapshot["a"].numpy() == 1).all()
    for value in range(3, 9):
        publisher.publish(version(value))
    reader.pull()
    with pytest.raises(slackline.Error):
        reader.pull(version=1)


def test_a_version_by_its_number_excludes_other_bounds(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    for read in (reader.pull, reader.prefetch):
        bounds: list[dict[str, Any]] = [{"max_staleness": 0}, {"min_version": 1}, {"max_staleness": 3, "min_version": 9}]
        for bound in bounds:
            with pytest.raises(slackline.BadOption, match="give `version` alone"):
                read(version=1, **bound)
    reader.prefetch(version=1, min_version=0)
    assert reader.swap().version == reader.pull(version=1, min_version=0).version == 1


def test_a_reader_connects_again_to_a_publisher_that_was_started_again(transport: str) -> None:
    first = slackline.Publisher(version(0), transport=transport)
    first.publish(version(1))
    with slackline.Reader(first.address) as reader:
        kept = reader.pull()
        first.close()
        with pytest.raises(slackline.PeerGone):
            reader.pull(min_version=2, timeout=20)
        with slackline.Publisher(version(0), address=first.address, begin_at=1) as second:
            reader.reconnect()
            assert reader.epoch == second.epoch != first.epoch
            second.publish(version(2))
            snapshot = reader.pull(min_version=2)
            assert (snapshot.version, snapshot.epoch) == (2, second.epoch)
            assert (kept["a"].numpy() == 1).all() and kept.epoch == first.epoch


@pytest.mark.parametrize(("timeout", "said"), [(0, "0ns"), (0.2, "200ms"), (1.25, "1.25s")])
def test_connecting_again_in_vain_says_the_time_that_was_given(timeout: float, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with slackline.Publisher(version(0)) as publisher, slackline.Reader(f"{publisher.address},{address}") as reader:
            publisher.close()
            with pytest.raises(slackline.DeadlineError, match=f"within {said}"):
                reader.reconnect(timeout=timeout)


def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_the_one_before() -> None:
    with slackline.Publisher(version(0), transport="tcp") as publisher:
        reader = slackline.Reader(publisher.address)
        port = int(publisher.address.rpartition(":")[2])
    # It takes in the first attempt, says nothing, and has no room for the second one, which is cut short.
    with reader, socket.create_server(("127.0.0.1", port), backlog=0):
        with pytest.raises(slackline.DeadlineError, match="within 700ms"):
            reader.reconnect(timeout=0.7)


def test_a_host_that_answers_nothing_at_first_is_asked_again() -> None:
    with slackline.Publisher(version(0), transport="tcp") as publisher:
        reader = slackline.Reader(publisher.address)
        address, port = publisher.address, int(publisher.address.rpartition(":")[2])
    with reader, contextlib.ExitStack() as later, socket.create_server(("127.0.0.1", port), backlog=0) as full:
        # Those that wait to be accepted fill the queue: the system answers no other one.
        for _ in range(3):
            waits = later.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())

        def start_again() -> None:
            time.sleep(1.2)  # longer than a first attempt takes
            full.close()
            second = later.enter_context(slackline.Publisher(version(0), address=address, begin_at=4))
            epochs.append(second.epoch)

        epochs: list[int] = []
        starting = threading.Thread(target=start_again)
        starting.start()
        reader.reconnect(timeout=60)
        starting.join()
        assert reader.epoch == epochs[0]


def test_the_age_of_a_version_counts_from_its_publication(pair: Pair) -> None:
    publisher, reader = pair
    before = time.time()
    publisher.publish(version(1))
    snapshot = reader.pull()
    time.sleep(0.05)
    assert snapshot.age is not None and 0.05 <= snapshot.age <= time.time() - before + 0.001
    with slackline.Server({"w": np.zeros(8, "float32")}) as server:
        assert server.parameters().age is None
