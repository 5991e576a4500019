"""The contract of vLLM's weight transfer, with a stand-in for vLLM: both engines, and the registries."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `cargo xtask wheel --integrations` installs it")

import vllm_interface

import slackline


class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).to(torch.bfloat16)

    def fill(self, number: int) -> None:
        with torch.no_grad():
            for weight in self.parameters():
                weight.fill_(number)

    def load_weights(self, weights: Iterator[tuple[str, Any]]) -> None:
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)

    def numbers(self) -> set[float]:
        return {number for weight in self.parameters() for number in weight.flatten().tolist()}


class Source:
    def __init__(self, model: Model) -> None:
        self.model, self.metadata = model, list(dict(model.named_parameters()))

    def implements_iter_full(self) -> bool:
        return True

    def owned_names(self, rank: int) -> list[str]:
        return self.metadata

    def iter_full(self) -> Iterator[tuple[str, Any]]:
        yield from self.model.named_parameters()


class Client:
    """What a trainer reaches the workers by."""

    def __init__(self, workers: list[Any]) -> None:
        self.workers, self.versions, self.is_active = workers, list[Any](), False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        for worker in self.workers:
            worker.init_transfer_engine(worker.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        assert not self.is_active, "called while a weight update is already active"
        self.is_active = True
        for worker in self.workers:
            worker.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        for worker in self.workers:
            worker.update_weights(update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.is_active = False
        for worker in self.workers:
            worker.finish_weight_update()
        self.versions.append(weight_version)


@pytest.fixture
def vllm() -> Iterator[Any]:
    if importlib.util.find_spec("vllm") is not None and "vllm" not in sys.modules:
        pytest.skip("vLLM itself is installed, and this is a test with a stand-in")
    print("the base classes are", vllm_interface.install())
    vllm_interface.calls.clear()
    sys.modules.pop("slackline.integrations.vllm", None)
    import slackline.integrations.vllm as plugin

    plugin.register()
    plugin.register()
    yield plugin
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.modules.pop("slackline.integrations.vllm", None)


def worker(model: Model) -> Any:
    factory: Any = importlib.import_module("vllm.distributed.weight_transfer.factory")
    config = types.SimpleNamespace(backend="slackline")
    vllm_config = types.SimpleNamespace(model_config=None, parallel_config=None)
    return factory.WeightTransferEngineFactory.create_engine(config, vllm_config, torch.device("cpu"), model)


def trainer(plugin: Any, model: Model, client: Client, rank: int = 0) -> Any:
    factory: Any = importlib.import_module("vllm.distributed.weight_transfer.factory")
    info = plugin.SlacklineTrainerInitInfo(rank=rank, timeout=20.0)
    return factory.WeightTransferTrainerFactory.trainer_init(info, client=client, source=Source(model))


def test_workers_load_the_version_that_the_trainer_sent(vllm: Any) -> None:
    models, trained = [Model(), Model()], Model()
    client = Client([worker(model) for model in models])
    engine, other = trainer(vllm, trained, client), trainer(vllm, trained, client, rank=1)
    for number in (1, 2, 3):
        trained.fill(number)
        engine.send_weights()
        other.send_weights()
        assert [model.numbers() for model in models] == [{number}, {number}]
    assert client.versions == ["1", "2", "3"]
    assert vllm_interface.calls == ["initialize", "initialize", "finalize", "finalize"] * 3
    engine.shutdown()
    for one in client.workers:
        one.shutdown()


def test_a_transfer_that_fails_leaves_the_model_as_it_was(vllm: Any) -> None:
    model, trained = Model(), Model()
    client = Client([worker(model)])
    engine = trainer(vllm, trained, client)
    trained.fill(1)
    engine.send_weights()
    engine.shutdown()
    client.start_weight_update()
    vllm_interface.calls.clear()
    with pytest.raises(slackline.Error):
        client.update_weights({"step": 2})
    client.finish_weight_update()
    assert model.numbers() == {1} and not vllm_interface.calls


def test_an_update_is_loaded_after_one_that_failed(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_info: Any) -> None:
        raise MemoryError

    model, trained = Model(), Model()
    client = Client([worker(model)])
    engine = trainer(vllm, trained, client)
    trained.fill(1)
    with monkeypatch.context() as patch:
        patch.setattr(client.workers[0], "receive_weights", fail)
        with pytest.raises(MemoryError):
            engine.send_weights()
    trained.fill(2)
    engine.send_weights()
    assert model.numbers() == {2} and client.versions == [None, "2"]
    engine.shutdown()
    client.workers[0].shutdown()


def test_a_load_that_fails_halfway_says_so_and_the_next_one_is_whole(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, trained = Model(), Model()
    client = Client([worker(model)])
    engine = trainer(vllm, trained, client)
    trained.fill(1)
    engine.send_weights()
    load = model.load_weights

    def halfway(weights: Iterator[tuple[str, Any]]) -> None:
        load(iter([next(weights)]))
        raise MemoryError

    trained.fill(2)
    vllm_interface.calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(model, "load_weights", halfway)
        with pytest.raises(RuntimeError, match="failed to load step 2, and the model has a part of it"):
            engine.send_weights()
    assert model.numbers() == {1, 2}
    # Closed once, so that the next load counts all weights of each layer.
    assert vllm_interface.calls == ["initialize", "finalize"]
    engine.send_weights()
    assert model.numbers() == {2} and vllm_interface.calls == ["initialize", "finalize"] * 2
    engine.shutdown()
    client.workers[0].shutdown()


def test_the_wheel_has_the_entry_point_that_vllm_looks_for() -> None:
    found = importlib.metadata.entry_points(group="vllm.general_plugins", name="slackline")
    assert [one.value for one in found] == ["slackline.integrations.vllm:register"]
