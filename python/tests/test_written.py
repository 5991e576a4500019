"""What a program writes into what it has pulled is in no version that it pulls later."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import slackline

Array = np.ndarray[Any, Any]


class Taken:
    """A tensor of a library that has no read-only ones, such as torch: it does not heed the flag of DLPack."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule
        self._array = np.from_dlpack(self)

    def __dlpack__(self, **_options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def fill(self, byte: int) -> None:
        ctypes.memset(self._array.ctypes.data, byte, self._array.nbytes)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the one function of torch that a view calls."""
    for name in ("torch", "torch.utils", "torch.utils.dlpack"):
        stand_in: Any = types.ModuleType(name)
        stand_in.from_dlpack = Taken
        monkeypatch.setitem(sys.modules, name, stand_in)


WAYS: dict[str, Callable[[slackline.ArrayView], Taken]] = {
    "torch": lambda view: view.torch(),
    "dlpack": lambda view: Taken(view.__dlpack__(max_version=(1, 0))),
}


@pytest.fixture
def served(transport: str) -> Iterator[tuple[Callable[[], Array], slackline.Reader]]:
    """Publishes a version that differs a little from the one before, and a reader."""
    weights = np.random.default_rng(1).standard_normal(100_000).astype("float32")
    with slackline.Publisher({"w": weights}, transport=transport, deltas=8) as publisher:

        def publish() -> Array:
            weights[::1000] += 1
            publisher.publish({"w": weights})
            return weights.copy()

        with slackline.Reader(publisher.address) as reader:
            yield publish, reader


Served = tuple[Callable[[], Array], slackline.Reader]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_into_a_pulled_tensor_is_in_no_later_version(served: Served, way: str) -> None:
    publish, reader = served
    published = publish()
    taken = WAYS[way](reader.pull()["w"])
    taken.fill(7)
    np.testing.assert_array_equal(reader.pull()["w"].numpy(), published)  # the same version, again
    del taken
    for _ in range(3):
        published = publish()
        snapshot = reader.pull()
        np.testing.assert_array_equal(snapshot["w"].numpy(), published)
        WAYS[way](snapshot["w"]).fill(9)
        del snapshot


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_while_the_next_version_is_awaited_is_not_in_it(served: Served, way: str) -> None:
    publish, reader = served
    publish()
    snapshot = reader.pull()
    reader.prefetch(min_version=2)
    with pytest.raises(slackline.DeadlineError):
        reader.swap(timeout=0.1)
    WAYS[way](snapshot["w"]).fill(7)
    published = publish()
    np.testing.assert_array_equal(reader.swap()["w"].numpy(), published)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_of_a_version_that_is_staged_is_not_swapped_in(served: Served, way: str) -> None:
    publish, reader = served
    published = publish()
    snapshot = reader.pull()
    reader.prefetch()
    time.sleep(0.1)  # as a rule the same memory is staged by now
    WAYS[way](snapshot["w"]).fill(7)
    np.testing.assert_array_equal(reader.swap()["w"].numpy(), published)
    with pytest.raises(slackline.OutOfTurn):
        reader.swap()


@pytest.mark.parametrize("into", [False, True])
def test_what_is_written_while_a_version_is_copied_is_not_in_it(into: bool) -> None:
    weights, arrays = np.zeros(4 << 20, "float32"), {"w": np.zeros(4 << 20, "float32")}
    with slackline.Publisher({"w": weights}, transport="tcp", deltas=8) as publisher:
        publisher.publish({"w": weights})
        with slackline.Reader(publisher.address) as reader:
            for number in range(1, 21):
                snapshot = reader.pull()
                if into:
                    copying = threading.Thread(target=reader.pull, args=(arrays,))
                    copying.start()
                else:
                    weights[0] = number
                    publisher.publish({"w": weights})
                    reader.prefetch(min_version=snapshot.version + 1)
                time.sleep(number * 0.0005)
                WAYS["torch"](snapshot["w"]).fill(7)
                if into:
                    copying.join()
                np.testing.assert_array_equal(arrays["w"] if into else reader.swap()["w"].numpy(), weights)


def test_arrays_of_the_program_are_filled_by_what_was_published(served: Served) -> None:
    publish, reader = served
    into = {"w": np.zeros(100_000, "float32")}
    published = publish()
    reader.pull()["w"].torch().fill(7)
    reader.pull(into)
    np.testing.assert_array_equal(into["w"], published)
    # A snapshot of these arrays is the program's: what it writes there is in its own memory.
    WAYS["torch"](reader.pull(into)["w"]).fill(7)
    published = publish()
    reader.pull(into)
    np.testing.assert_array_equal(into["w"], published)


def test_what_is_only_read_is_the_beginning_of_the_next_pull(served: Served) -> None:
    publish, reader = served
    publish()
    first = reader.pull()["w"]
    first.torch(read_only=True)
    assert np.shares_memory(reader.pull()["w"].numpy(), first.numpy())
    first.torch()
    assert not np.shares_memory(reader.pull()["w"].numpy(), first.numpy())


def test_a_part_of_a_table_stays_selected_after_it_was_written(transport: str) -> None:
    table = {"w": np.ones(100, "float32"), "other": np.ones(3)}
    with slackline.Publisher(table, transport=transport) as publisher:
        publisher.publish(table)
        with slackline.Reader(publisher.address, select=["w"]) as reader:
            reader.pull()["w"].torch().fill(7)
            snapshot = reader.pull()
            assert list(snapshot) == ["w"] and (snapshot["w"].numpy() == 1).all()
