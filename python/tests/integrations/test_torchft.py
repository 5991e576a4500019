"""The checkpoint transport of torchft, with torchft: its own test of a transport, and what it does not look at."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any
from unittest import TestCase

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: `cargo xtask wheel --integrations` installs it")

import torch
from torchft.checkpointing.transport_test import make_state_dict, run_multi_recovery_test

import slackline
from slackline.integrations.torchft import SlacklineTransport

LONG = timedelta(seconds=20)


def pulled(receiver: SlacklineTransport[Any], sender: SlacklineTransport[Any], step: int) -> Any:
    return receiver.recv_checkpoint(0, sender.metadata(), step, LONG)


def test_torchfts_own_test_of_a_transport_passes(transport: str) -> None:
    def make(_rank: int, _world_size: int) -> SlacklineTransport[dict[str, object]]:
        return SlacklineTransport(LONG, state_dict=lambda: make_state_dict(torch.device("cpu")), transport=transport)

    run_multi_recovery_test(TestCase(), make, torch.device("cpu"))


def test_the_state_of_a_model_and_its_optimizer_comes_back_equal(transport: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    model(torch.ones(3, 7, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "user": {"model": model.state_dict(), "optim": optimizer.state_dict()},
        "torchft": {"step": 3, "batches_committed": 12},
        "schedule": torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5]).state_dict(),
        "rest": [None, True, 1.5, (1, torch.tensor(2)), torch.empty(0, 4), torch.tensor([True, False])],
    }
    sender, receiver = (SlacklineTransport[Any](LONG, transport=transport) for _ in range(2))
    try:
        state["text"] = "\u00e9 in a text"
        sender.send_checkpoint([1], 3, state, LONG)
        found = pulled(receiver, sender, 3)
        assert found.pop("text") == state.pop("text")
        # A schedule counts by the methods of a Counter.
        assert list(found["schedule"]["milestones"].elements()) == [2, 2, 5]
        torch.testing.assert_close(found, state, rtol=0, atol=0)
        other = torch.optim.Adam(torch.nn.Linear(7, 5).parameters())
        assert found["user"]["optim"]["param_groups"][0]["betas"] == (0.9, 0.95)
        assert set(found["user"]["optim"]["state"]) == set(optimizer.state_dict()["state"])
        assert other.state_dict().keys() == found["user"]["optim"].keys()
    finally:
        sender.shutdown()
        receiver.shutdown()


def test_a_state_that_changes_after_it_was_sent_is_received_as_it_was() -> None:
    weights = torch.ones(1 << 20)
    sender, receiver = SlacklineTransport[Any](), SlacklineTransport[Any]()
    try:
        sender.send_checkpoint([1], 1, {"weights": weights}, LONG)
        sender.disallow_checkpoint()
        weights.fill_(2)
        assert (pulled(receiver, sender, 1)["weights"] == 1).all()
        sender.send_checkpoint([1], 2, {"weights": weights, "more": torch.ones(3)}, LONG)
        assert (pulled(receiver, sender, 2)["weights"] == 2).all()
    finally:
        sender.shutdown()
        receiver.shutdown()


def test_a_receiver_that_comes_first_waits_for_its_step() -> None:
    sender, receiver = SlacklineTransport[Any](), SlacklineTransport[Any]()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(pulled(receiver, sender, 5)))
    try:
        sender.send_checkpoint([1], 4, {"step": 4}, LONG)
        thread.start()
        time.sleep(0.1)
        sender.send_checkpoint([1], 5, {"step": 5}, LONG)
        thread.join(30)
        assert found == [{"step": 5}]
        with pytest.raises(TimeoutError, match="timed out"):
            receiver.recv_checkpoint(0, sender.metadata(), 6, timedelta(milliseconds=50))
    finally:
        sender.shutdown()
        thread.join()
        receiver.shutdown()


def test_a_copy_is_given_back_once_its_time_is_over() -> None:
    sender = SlacklineTransport[Any]()
    try:
        sender.send_checkpoint([1], 1, {"weights": torch.ones(3)}, LONG)
        sender.disallow_checkpoint()
        assert sender._source.serves
        sender._until = time.monotonic()
        sender.disallow_checkpoint()
        assert not sender._source.serves
    finally:
        sender.shutdown()


def test_what_could_run_code_is_not_sent() -> None:
    sender = SlacklineTransport[Any]()
    try:
        with pytest.raises(TypeError, match="only tensors"):
            sender.send_checkpoint([1], 1, {"run": print}, LONG)
    finally:
        sender.shutdown()


def test_a_sender_that_is_gone_is_an_error_at_once() -> None:
    sender, receiver = SlacklineTransport[Any](), SlacklineTransport[Any]()
    sender.shutdown()
    with pytest.raises((slackline.Error, TimeoutError)):
        receiver.recv_checkpoint(0, "@no-such-publisher", 1, timedelta(seconds=0.2))
    receiver.shutdown()
