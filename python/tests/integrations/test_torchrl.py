"""The scheme of TorchRL, with TorchRL."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import pytest

pytest.importorskip("torchrl", reason="torchrl is not installed: `cargo xtask wheel --integrations` installs it")

import litmus_torchrl
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.weight_update import WeightSyncScheme

from slackline import Publisher, Reader, Snapshot
from slackline.integrations.torchrl import SlacklineTransport, SlacklineWeightSyncScheme


class Still(EnvBase):  # type: ignore[misc, unused-ignore]
    """An environment in which nothing happens."""

    def __init__(self) -> None:
        super().__init__(device="cpu", batch_size=[])
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((2,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, _tensors: TensorDictBase | None = None, **_arguments: Any) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(1)}, [])

    def _step(self, _tensors: TensorDictBase) -> TensorDictBase:
        nothing = torch.zeros(1)
        return TensorDict({"observation": nothing, "reward": nothing, "done": nothing.bool()}, [])

    def _set_seed(self, _seed: int | None) -> None:
        pass


def policy() -> TensorDictModule:
    return TensorDictModule(litmus_torchrl.Look().fill(1), in_keys=["observation"], out_keys=["action"])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("sync", [True, False])
def test_no_call_of_a_policy_sees_two_versions(transport: str, sync: bool) -> None:
    scheme = SlacklineWeightSyncScheme(sync=sync, transport=transport)
    if sync:
        calls, torn, versions, sent = litmus_torchrl.run(scheme, 2.0)
        assert calls > 0 and torn == 0 and 1 < versions <= sent
    else:
        # Without waiting the last version is in use a moment later: only wholeness is claimed.
        try:
            calls, torn, _versions, _sent = litmus_torchrl.run(scheme, 2.0)
        except AssertionError as error:
            assert "ended with version" in str(error)
        else:
            assert calls > 0 and torn == 0


def test_torchrl_knows_the_scheme_by_name() -> None:
    assert isinstance(WeightSyncScheme.from_backend("slackline"), SlacklineWeightSyncScheme)


@pytest.mark.parametrize("factory", [False, True])
def test_collectors_act_on_the_version_that_was_sent(factory: bool) -> None:
    scheme = SlacklineWeightSyncScheme()
    trained = policy()
    given: dict[str, Any] = {"policy_factory": policy} if factory else {"policy": trained}
    collector = MultiSyncCollector(
        [Still, Still], frames_per_batch=16, total_frames=64, weight_sync_schemes={"policy": scheme}, **given
    )
    try:
        batches = iter(collector)
        assert (next(batches)["action"] == 1).all()
        for number in (2, 3):
            trained.module.fill(number)
            collector.update_policy_weights_(TensorDict.from_module(trained))
            assert scheme.version == number
            assert (next(batches)["action"] == number).all()
    finally:
        collector.shutdown()


def test_a_collector_that_never_waits_has_no_torn_action() -> None:
    trained = policy()
    collector = MultiAsyncCollector(
        [Still, Still],
        trained,
        frames_per_batch=64,
        total_frames=-1,
        weight_sync_schemes={"policy": SlacklineWeightSyncScheme(sync=False)},
    )
    try:
        seen, number, until = 0.0, 1, time.monotonic() + 60
        for batch in collector:
            low, high = batch["action"].reshape(-1, 2).unbind(-1)
            assert (low == high).all()
            seen = max(seen, high.max().item())
            if seen >= 20:
                break
            assert time.monotonic() < until
            for _ in range(5):
                number += 1
                trained.module.fill(number)
                collector.update_policy_weights_(TensorDict.from_module(trained))
    finally:
        collector.shutdown()


def test_more_workers_than_a_publisher_takes_by_default_read_the_weights() -> None:
    scheme = SlacklineWeightSyncScheme()
    scheme.init_on_sender(weights=TensorDict({"a": torch.zeros(3)}), model_id="policy")
    readers: list[Reader] = []
    try:
        scheme.connect()
        address = scheme.create_transport().address
        assert address is not None
        for _ in range(65):
            readers.append(Reader(address, timeout=10))
            assert readers[-1].pull(min_version=1, timeout=10).version == 1
    finally:
        for reader in readers:
            reader.close()
        scheme.shutdown()


def snapshots(count: int) -> list[Snapshot]:
    with Publisher({"a": torch.zeros(3)}) as publisher, Reader(publisher.address) as reader:
        return [reader.pull(version=publisher.publish({"a": torch.zeros(3)})) for _ in range(count)]


def test_a_version_that_another_thread_has_taken_is_none() -> None:
    transport = SlacklineTransport({}, 60.0, True)
    others: list[threading.Thread] = []

    class Raced(deque[Snapshot]):
        """Another thread asks as soon as one has seen that a version is there."""

        def __len__(self) -> int:
            seen = super().__len__()
            if seen > 0 and not others:
                others.append(threading.Thread(target=transport.receive_weights))
                others[0].start()
                others[0].join(1.0)
            return seen

    (snapshot,) = snapshots(1)
    transport._staged = Raced([snapshot])
    transport.receive_weights()
    others[0].join(60.0)
    assert not others[0].is_alive() and transport.version == snapshot.version and not transport.is_behind


def test_threads_apply_one_version_after_the_other() -> None:
    transport = SlacklineTransport({}, 60.0, True)
    is_in, may_end, applying, most = threading.Event(), threading.Event(), 0, 0

    class Strategy:
        def apply_weights(self, _model: Any, _weights: Any) -> None:
            nonlocal applying, most
            applying += 1
            most = max(most, applying)
            is_in.set()
            assert may_end.wait(60.0)
            applying -= 1

    def take() -> None:
        transport.receive_weights(60.0, model=object(), strategy=Strategy())

    threads = [threading.Thread(target=take) for _ in range(2)]
    first, second = snapshots(2)
    transport._staged.append(first)
    threads[0].start()
    assert is_in.wait(60.0)
    transport._staged.append(second)
    threads[1].start()
    # Time for the second one to begin, if it does not wait.
    threads[1].join(0.5)
    may_end.set()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert most == 1 and transport.version == second.version


def test_the_thread_of_a_scheme_that_is_dropped_ends_also_where_the_trainer_is_gone() -> None:
    with Publisher({"a": torch.zeros(3)}) as publisher:
        publisher.publish({"a": torch.zeros(3)})
        transport = SlacklineTransport({}, 60.0, True)
        transport.address = publisher.address
        transport.setup_connection_and_weights_on_receiver()
    thread = transport._thread
    assert thread is not None
    del transport
    thread.join(60.0)
    assert not thread.is_alive()


def test_weights_for_some_of_the_workers_are_refused() -> None:
    scheme = SlacklineWeightSyncScheme()
    scheme.init_on_sender(weights=TensorDict({"a": torch.zeros(3)}), model_id="policy")
    try:
        scheme.connect()
        with pytest.raises(ValueError, match="every worker"):
            scheme.send(TensorDict({"a": torch.ones(3)}), worker_ids=[0])
        with pytest.raises(ValueError, match="every worker"):
            scheme.send({0: TensorDict({"a": torch.ones(3)})})
    finally:
        scheme.shutdown()
