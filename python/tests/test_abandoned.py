"""A read over TCP that ends in the middle of its copy keeps no frame from its publisher."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import slackline

BYTES = 4 << 20

# So much of a copy comes between two versions: the publisher laps it, and it is pinned when it is made again.
PART = BYTES // 8


class Proxy:
    """Hands bytes on to a publisher, and back as many as it is let."""

    def __init__(self, to: str) -> None:
        host, port = to.rsplit(":", 1)
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._opened = [self._listener]
        self._changed = threading.Condition()
        self._left: int | None = None
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def let(self, left: int | None) -> None:
        """Hands on so many more bytes of answers, and about one packet more; None are all of them."""
        with self._changed:
            self._left = left
            self._changed.notify_all()

    def close(self) -> None:
        self.let(None)
        for opened in self._opened:
            opened.close()

    def _accept(self) -> None:
        try:
            while True:
                reader, _ = self._listener.accept()
                publisher = socket.create_connection(self._to)
                self._opened += [reader, publisher]
                for source, to, answers in ((reader, publisher, False), (publisher, reader, True)):
                    threading.Thread(target=self._hand_on, args=(source, to, answers), daemon=True).start()
        except OSError:
            return

    def _hand_on(self, source: socket.socket, to: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if answers:
                    with self._changed:
                        self._changed.wait_for(lambda: self._left is None or self._left > 0)
                        if self._left is not None:
                            self._left -= len(data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            return


@pytest.fixture
def publisher() -> Iterator[slackline.Publisher]:
    table = {"a": np.zeros(BYTES // 4, "float32")}
    # A frame is free while one is pinned.
    with slackline.Publisher(table, transport="tcp", frames=3, lease=60.0) as publisher:
        publisher.publish(table)
        yield publisher


@pytest.fixture
def proxy(publisher: slackline.Publisher) -> Iterator[Proxy]:
    proxy = Proxy(publisher.address)
    yield proxy
    proxy.close()


@pytest.fixture
def on_alarm() -> Iterator[Callable[[], None]]:
    """Raises an exception in the main thread, by a handler of a signal."""

    def handle(_signal: int, _frame: Any) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda: os.kill(os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def stalls_once_pinned(publisher: slackline.Publisher, proxy: Proxy, then: Callable[[], None]) -> threading.Thread:
    """Publishes over the copy that is being made until the reader pins a frame, and lets no more of it come."""
    proxy.let(0)

    def publish() -> None:
        frames = {"a": np.ones(BYTES // 4, "float32")}
        while publisher.readers[0].pins is None:
            publisher.publish(frames)
            proxy.let(PART)
            time.sleep(0.005)
        then()

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


@pytest.mark.parametrize("ends", ["by its deadline", "by a signal", "as a prefetch"])
def test_a_read_that_ends_in_its_copy_unpins_the_frame(
    ends: str, publisher: slackline.Publisher, proxy: Proxy, on_alarm: Callable[[], None]
) -> None:
    with slackline.Reader(proxy.address) as reader:
        pinned = threading.Event()
        stalling = stalls_once_pinned(publisher, proxy, on_alarm if ends == "by a signal" else pinned.set)
        if ends == "by a signal":
            with pytest.raises(ZeroDivisionError):
                reader.pull(timeout=60)
        elif ends == "by its deadline":
            while not pinned.is_set():
                with pytest.raises(slackline.DeadlineError):
                    reader.pull(timeout=3)
        else:
            reader.prefetch(timeout=3)
            while not pinned.wait(3):
                reader.prefetch(timeout=3)
        stalling.join()
        deadline = time.monotonic() + 20
        while publisher.readers[0].pins is not None:
            assert time.monotonic() < deadline, publisher.readers
            time.sleep(0.01)
        # The publisher goes on, and so does the reader.
        newest = publisher.publish({"a": np.full(BYTES // 4, 2, "float32")})
        proxy.let(None)
        if ends == "as a prefetch":
            assert (reader.swap(timeout=60)["a"].numpy() == 2).all()
        else:
            assert reader.pull(timeout=60).version == newest
