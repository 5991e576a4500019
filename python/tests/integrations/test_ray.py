"""The transport of Ray, and the state server of RLlib, with a cluster of Ray on this host."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: `cargo xtask wheel --integrations` installs it")
torch = pytest.importorskip("torch", reason="torch is not installed: `cargo xtask wheel --integrations` installs it")

import numpy as np

import slackline
import slackline.integrations.ray

SIZE = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    slackline.integrations.ray.register()
    # The actors of these tests are of a module that a worker cannot import.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


class Trainer:
    def __init__(self) -> None:
        self.weight = torch.zeros(SIZE)

    def weights(self, number: int) -> dict[str, Any]:
        self.weight.fill_(number)
        return {"weight": self.weight, "number": torch.tensor(number), "none": torch.empty(0, 3)}

    def overwrite(self) -> None:
        self.weight.fill_(-1)

    def alive(self) -> int:
        from ray.experimental.rdt.util import get_tensor_transport_manager

        manager: Any = get_tensor_transport_manager("SLACKLINE")
        return len(manager._served)


class Sampler:
    def look(self, state: dict[str, Any]) -> tuple[float, float, int, tuple[int, ...]]:
        weight = state["weight"]
        return weight.min().item(), weight.max().item(), int(state["number"]), tuple(state["none"].shape)


@pytest.fixture
def actors(cluster: None) -> Iterator[tuple[Any, Any]]:
    trainer_class: Any = ray.remote(num_cpus=1, enable_tensor_transport=True)(Trainer)
    sampler_class: Any = ray.remote(num_cpus=1, enable_tensor_transport=True)(Sampler)
    trainer, sampler = trainer_class.remote(), sampler_class.remote()
    yield trainer, sampler
    for actor in (trainer, sampler):
        ray.kill(actor)


def test_an_actor_reads_the_tensors_of_another(actors: tuple[Any, Any]) -> None:
    trainer, sampler = actors
    for number in (1, 2, 3):
        reference = trainer.weights.options(tensor_transport="slackline").remote(number)
        assert ray.get(sampler.look.remote(reference), timeout=60) == (number, number, number, (0, 3))


def test_tensors_that_are_overwritten_after_they_were_returned_are_whole(actors: tuple[Any, Any]) -> None:
    trainer, sampler = actors
    reference = trainer.weights.options(tensor_transport="slackline").remote(7)
    ray.get(trainer.overwrite.remote(), timeout=60)
    assert ray.get(sampler.look.remote(reference), timeout=60) == (7, 7, 7, (0, 3))


def test_memory_is_given_back_with_the_last_reference(actors: tuple[Any, Any]) -> None:
    trainer, sampler = actors
    reference = trainer.weights.options(tensor_transport="slackline").remote(1)
    ray.get(sampler.look.remote(reference), timeout=60)
    assert ray.get(trainer.alive.remote(), timeout=60) == 1
    del reference
    until = time.monotonic() + 60
    while ray.get(trainer.alive.remote(), timeout=60):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_buffers_of_the_receiver_take_the_tensors() -> None:
    transport = slackline.integrations.ray.SlacklineTransport()
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2])]
    metadata = transport.extract_tensor_transport_metadata("object", tensors)
    buffers = [torch.zeros(3, 2).T, torch.zeros(2, dtype=torch.int64)]
    there = transport.get_communicator_metadata(None, None)
    found = transport.recv_multiple_tensors("object", metadata, there, buffers)
    assert all(torch.equal(*pair) for pair in zip(found, tensors, strict=True)) and found[0] is buffers[0]
    transport.garbage_collect("object", metadata, tensors)
    assert not transport._served


def test_an_object_that_is_asked_for_again_is_as_it_was_when_it_was_returned() -> None:
    transport = slackline.integrations.ray.SlacklineTransport()
    tensors = [torch.ones(3)]
    first = transport.extract_tensor_transport_metadata("object", tensors)
    tensors[0].fill_(2)
    assert transport.extract_tensor_transport_metadata("object", tensors) == first
    there = transport.get_communicator_metadata(None, None)
    (found,) = transport.recv_multiple_tensors("object", first, there)
    assert (found == 1).all()
    transport.garbage_collect("object", first, tensors)
    assert not transport._served


def test_tensors_come_back_on_the_kind_of_device_that_they_were_on() -> None:
    transport = slackline.integrations.ray.SlacklineTransport()
    tensors = [torch.ones(3), torch.empty(0, 2)]
    metadata = transport.extract_tensor_transport_metadata("object", tensors)
    there = transport.get_communicator_metadata(None, None)
    # A device that every machine has.
    metadata.tensor_device = "meta"
    found = transport.recv_multiple_tensors("object", metadata, there)
    assert [tensor.device.type for tensor in found] == ["meta", "meta"]
    if not torch.cuda.is_available():
        metadata.tensor_device = "cuda"
        (found, _) = transport.recv_multiple_tensors("object", metadata, there)
        assert found.device.type == "cpu" and (found == 1).all()
    transport.garbage_collect("object", metadata, tensors)


def test_tensors_without_elements_come_back_in_memory_of_the_host_whatever_the_default_device() -> None:
    transport = slackline.integrations.ray.SlacklineTransport()
    metadata = transport.extract_tensor_transport_metadata("object", [torch.empty(0, 3)])
    with torch.device("meta"):
        there = transport.get_communicator_metadata(None, None)
        (found,) = transport.recv_multiple_tensors("object", metadata, there)
    assert found.device.type == "cpu" and found.shape == (0, 3)


def test_the_time_of_a_read_is_that_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from slackline.integrations._reads import VARIABLE, timeout

    monkeypatch.delenv(VARIABLE, raising=False)
    assert timeout() == 60.0
    for given, seconds in (("", 60.0), ("0.25", 0.25), ("3600", 3600.0)):
        monkeypatch.setenv(VARIABLE, given)
        assert timeout() == seconds
    for given in ("0", "-1", "nan", "inf", "a minute"):
        monkeypatch.setenv(VARIABLE, given)
        with pytest.raises(slackline.BadOption, match=f"SLACKLINE_RAY_TIMEOUT is '{given}'"):
            timeout()
    # The reads of both plug-ins go by it.
    transport = slackline.integrations.ray.SlacklineTransport()
    metadata = transport.extract_tensor_transport_metadata("object", [torch.ones(3)])
    there = transport.get_communicator_metadata(None, None)
    with pytest.raises(slackline.BadOption):
        transport.recv_multiple_tensors("object", metadata, there)
    transport.garbage_collect("object", metadata, [])
    monkeypatch.setenv(VARIABLE, "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        metadata.address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(slackline.DeadlineError, match="within 200ms"):
            transport.recv_multiple_tensors("object", metadata, there)
        with pytest.raises(slackline.DeadlineError, match="within 200ms"):
            rllib()._read(metadata.address, 1)


def test_an_object_says_the_address_that_ray_knows_its_host_by(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKLINE_RAY_ADDRESS", "0.0.0.0:0")
    monkeypatch.setenv("SLACKLINE_SECRET", "an example of a secret that is long enough")
    transport = slackline.integrations.ray.SlacklineTransport()
    tensors = [torch.ones(3)]
    metadata = transport.extract_tensor_transport_metadata("object", tensors)
    assert metadata.address.rpartition(":")[0] == ray.util.get_node_ip_address()
    transport.garbage_collect("object", metadata, tensors)


def rllib() -> Any:
    pytest.importorskip("ray.rllib", reason="RLlib is not installed: `cargo xtask wheel --integrations` installs it")
    import slackline.integrations.rllib

    return slackline.integrations.rllib


def server() -> Any:
    server_class: Any = ray.remote(num_cpus=0, max_concurrency=8)(rllib().SlacklineStateServer)
    return server_class.remote()


def weights_of(number: int, **others: Any) -> dict[str, Any]:
    return {"rl_module": {"v": np.full(5, number), **others}, "weights_seq_no": number}


def read(state: dict[str, Any]) -> dict[str, Any]:
    """The weights of a state as a sampler finds them, which has to have a note of them."""
    read_weights, there = state["rl_module"].__reduce__()
    found: dict[str, Any] = read_weights(*there)
    return found


def test_a_sampler_that_has_lost_its_connection_reads_by_a_new_one() -> None:
    plugin = rllib()
    name = plugin.json.dumps(["v"])
    first = slackline.Publisher({name: np.ones(5)}, address="127.0.0.1:0")
    first.publish({name: np.ones(5)})
    address = first.address
    assert plugin._read(address, 1)["v"].tolist() == [1] * 5
    first.close()
    with slackline.Publisher({name: np.ones(5)}, address=address) as second:
        second.publish({name: np.full(5, 2.0)})
        assert plugin._read(address, 1)["v"].tolist() == [2] * 5
    plugin._readers.pop(address).close()


def test_the_state_server_publishes_again_after_a_publisher_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = rllib()
    there = plugin.SlacklineStateServer()

    def fails(*_arguments: Any, **_options: Any) -> None:
        raise slackline.PeerGone("another process listens there")

    there.push(weights_of(1))
    assert read(there.pull())["v"].tolist() == [1] * 5
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "Publisher", fails)
        there.push(weights_of(2, more=np.ones(3)))
    assert there.pull()["rl_module"]["more"].tolist() == [1] * 3
    there.push(weights_of(3))
    assert read(there.pull())["v"].tolist() == [3] * 5
    there._publisher.close()


def test_weights_with_an_empty_array_are_published_whole() -> None:
    there = rllib().SlacklineStateServer()
    there.push(weights_of(1, none=np.zeros((0, 3), "float32")))
    found = read(there.pull())
    assert found["v"].tolist() == [1] * 5
    assert found["none"].shape == (0, 3) and found["none"].dtype == np.float32
    there._publisher.close()


def test_the_state_server_hands_out_weights_that_are_newer(cluster: None) -> None:
    there = server()

    def state(number: int) -> dict[str, Any]:
        weights = {
            "default_policy": {"pi.weight": np.full((3, 4), number, "float32"), "v": np.full(5, number, "int64")}
        }
        return {"rl_module": ray.put(weights), "weights_seq_no": number, "env_to_module_connector": {"count": number}}

    assert ray.get(there.get_version.remote(), timeout=60) == -1
    for number in (1, 2, 3):
        ray.get(there.push.remote(state(number)), timeout=60)
        found = ray.get(there.pull_if_newer.remote(number - 1), timeout=60)
        assert found["weights_seq_no"] == number and found["env_to_module_connector"] == {"count": number}
        module = found["rl_module"]["default_policy"]
        np.testing.assert_array_equal(module["pi.weight"], np.full((3, 4), number, "float32"))
        np.testing.assert_array_equal(module["v"], np.full(5, number))
        assert ray.get(there.pull_if_newer.remote(number), timeout=60) is None
    # A learner that is restored to an older state counts from there, and its weights are the newest.
    ray.get(there.push.remote(state(1)), timeout=60)
    found = ray.get(there.pull_if_newer.remote(0), timeout=60)
    assert found["weights_seq_no"] == 1 and found["rl_module"]["default_policy"]["v"].tolist() == [1] * 5
    # Weights that no table can have go by ray.
    strange = {"rl_module": {"random": {"none": np.zeros(0)}}, "weights_seq_no": 2}
    ray.get(there.push.remote(strange), timeout=60)
    assert ray.get(there.pull_if_newer.remote(1), timeout=60)["rl_module"]["random"]["none"].size == 0
    ray.kill(there)


def weights_and_readers(runner: Any) -> tuple[int, int]:
    """The number of the weights of a sampler, and its connections to a server of slackline."""
    from slackline.integrations import rllib

    return runner._weights_seq_no, len(rllib._readers)


def test_appo_trains_with_weights_that_its_samplers_pull(cluster: None) -> None:
    pytest.importorskip("ray.rllib", reason="RLlib is not installed: `cargo xtask wheel --integrations` installs it")
    from ray.rllib.algorithms import appo

    import slackline.integrations.rllib

    slackline.integrations.rllib.use_state_server()
    make: Any = appo.APPOConfig
    config = (
        make()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, use_env_runner_state_server=True, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, broadcast_interval=1)
        .reporting(min_time_s_per_iteration=0)
    )
    algorithm: Any = config.build_algo()
    try:
        found, until = (0, 0), time.monotonic() + 240
        while found[0] < 3 or found[1] < 1:
            assert time.monotonic() < until, found
            algorithm.train()
            (found,) = algorithm.env_runner_group.foreach_env_runner(weights_and_readers, local_env_runner=False)
    finally:
        algorithm.stop()
