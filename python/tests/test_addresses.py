"""A reader with several addresses: what one of them says for good does not speak for the others."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest
from conftest import version

import slackline


def answer_all(listener: socket.socket, asked: list[None]) -> None:
    """Answers as no process of slackline does, until the listener is closed."""
    try:
        while True:
            stream, _peer = listener.accept()
            asked.append(None)
            with stream:
                stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(512))
                stream.recv(1 << 16)
    except OSError:
        return


# A folder that is none, and RDMA, where the host has none.
@pytest.mark.parametrize("never", ["/dev/null/none", "verbs:127.0.0.1:9"])
def test_an_address_that_can_never_answer_ends_no_search_at_others(never: str, transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as first:
        reader = slackline.Reader(f"{never},{first.address}", timeout=30)
        assert reader.address == f"{never},{first.address}"
        assert reader.pull().version == 0
    with reader, slackline.Publisher(version(0), address=first.address, begin_at=7) as second:
        reader.reconnect(timeout=30)
        assert reader.epoch == second.epoch
        assert reader.pull().version == 7


def test_addresses_of_which_none_can_ever_answer_fail_with_their_cause() -> None:
    with slackline.Publisher(version(0), transport="tcp") as publisher:
        reader = slackline.Reader(publisher.address)
    with pytest.raises(slackline.Error, match="/dev/null/other") as caught:
        slackline.Reader("/dev/null/none,/dev/null/other", timeout=600)
    assert not caught.value.is_retryable
    # What answers there is no publisher, and never becomes one.
    port = int(publisher.address.rpartition(":")[2])
    with reader, socket.create_server(("127.0.0.1", port)) as listener:

        threading.Thread(target=answer_all, args=(listener, []), daemon=True).start()
        with pytest.raises(slackline.Error, match="not slackline"):
            reader.reconnect(timeout=600)


def test_an_address_that_can_never_answer_is_seldom_asked_again() -> None:
    with slackline.Publisher(version(0), transport="tcp") as publisher:
        reader = slackline.Reader(f"{publisher.address},@does-not-listen-yet")
    asked: list[None] = []
    port = int(publisher.address.rpartition(":")[2])
    with reader, socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=answer_all, args=(listener, asked), daemon=True).start()
        with pytest.raises(slackline.Error):
            reader.reconnect(timeout=2)
    # At first, and after 0.5 s, while the other address is asked all the time.
    assert 1 <= len(asked) <= 4


def test_an_owner_with_another_table_is_told_though_others_may_come(transport: str) -> None:
    with slackline.Publisher(version(0), transport=transport) as first:
        reader = slackline.Reader(f"{first.address},@does-not-listen-yet")
    with reader, slackline.Publisher({"c": np.zeros(3, "float32")}, address=first.address):
        with pytest.raises(slackline.LayoutMismatch, match="others than before"):
            reader.reconnect(timeout=600)
