"""A weight transfer engine of vLLM: workers read the weights that a trainer has published, and load whole versions.

vLLM finds it by its entry point when both packages are installed (VLLM_PLUGINS, if set, has to name "slackline"):

    llm = vllm.LLM(..., weight_transfer_config=WeightTransferConfig(backend="slackline"))  # or --weight-transfer-config

    from slackline.integrations.vllm import SlacklineTrainerInitInfo, register  # in the trainer
    register()
    engine = WeightTransferTrainerFactory.trainer_init(SlacklineTrainerInitInfo(rank=0), client=client, source=source)
    engine.send_weights()

Between hosts give `SlacklineTrainerInitInfo(address="0.0.0.0:0", rank=0)`, and a secret in the environment of all. The
weights pass through the memory of the hosts. A worker changes its model only when it has all of a version. If vLLM then
fails to load it, the error says that the model is a mixture, until the next update.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ._served import Sink, Source

__all__ = [
    "SlacklineInitInfo",
    "SlacklineTrainerEngine",
    "SlacklineTrainerInitInfo",
    "SlacklineUpdateInfo",
    "SlacklineWeightTransferEngine",
    "register",
]

NAME = "slackline"


@dataclass
class SlacklineInitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """What a worker has to know: where the trainer publishes."""

    address: str
    timeout: float = 600.0


@dataclass
class SlacklineUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """Which version the worker loads."""

    step: int


@dataclass
class SlacklineTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc, unused-ignore]
    """Where the trainer publishes; the options are those of `slackline.Publisher`."""

    backend: ClassVar[str] = NAME

    address: str | None = None
    timeout: float = 600.0
    options: dict[str, Any] = field(default_factory=dict)


class SlacklineWeightTransferEngine(
    WeightTransferEngine[SlacklineInitInfo, SlacklineUpdateInfo]  # type: ignore[misc, unused-ignore]
):
    """In a worker: reads, and loads."""

    init_info_cls = SlacklineInitInfo
    update_info_cls = SlacklineUpdateInfo

    _sink: Sink | None = None
    _timeout = 0.0
    _loading = False

    def init_transfer_engine(self, init_info: SlacklineInitInfo) -> None:
        self.shutdown()
        self._timeout = init_info.timeout
        self._sink = Sink(init_info.address, None, init_info.timeout)

    def start_weight_update(self) -> None:
        # The model is touched only when a whole version is here, so that a transfer that fails leaves it as it was.
        self._loading = False

    def receive_weights(self, update_info: SlacklineUpdateInfo) -> None:
        if self._sink is None:
            raise RuntimeError("init_transfer_engine was not called before the weights were received")
        snapshot = self._sink.pull(update_info.step, self._timeout)
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        self._loading = True
        # On another device the model gets a copy. Where it gets the snapshot itself, it may write it.
        is_copied = self.device.type != "cpu"
        try:
            self.model.load_weights(
                (name, snapshot[name].torch(read_only=is_copied).to(self.device)) for name in snapshot
            )
        except Exception as error:
            step = update_info.step
            try:
                # Whatever vLLM does next, the next load begins with whole layers.
                self.finish_weight_update()
            finally:
                raise RuntimeError(
                    f"vLLM failed to load step {step}, and the model has a part of it and a part of the weights "
                    "before: send the weights again before it generates"
                ) from error

    def finish_weight_update(self) -> None:
        if self._loading:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            self._loading = False
            finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None


class SlacklineTrainerEngine(
    TrainerWeightTransferEngine[SlacklineTrainerInitInfo]  # type: ignore[misc, unused-ignore]
):
    """In each rank of the trainer: all take part in gathering the weights, and the first publishes them."""

    init_info_cls = SlacklineTrainerInitInfo

    _served: Source | None = None
    _timeout = 0.0
    _step = 0

    @classmethod
    def trainer_init(
        cls, init_info: SlacklineTrainerInitInfo, *, client: Any, source: Any = None
    ) -> SlacklineTrainerEngine:
        if source is None or not source.implements_iter_full():
            raise ValueError("the engine sends full tensors: give it a WeightSource with iter_full()")
        if init_info.is_sender and len(source.owned_names(init_info.rank)) != len(source.metadata):
            raise ValueError("the first rank of the trainer publishes, and it does not own every parameter")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        engine._timeout = init_info.timeout
        if init_info.is_sender:
            engine._served = Source({**init_info.options, "address": init_info.address})
            client.init_weight_transfer_engine({"address": engine._served.address, "timeout": init_info.timeout})
        return engine

    def send_weights(self) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in self.source.iter_full():
            if self._served is not None:
                # The source may free it, or use its memory again.
                tensors[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        if self._served is None:
            return
        # The workers are told when the version is there: until then they go on with the one that they have.
        self._step += 1
        self._served.publish(tensors, self._step, self._timeout)
        self.client.start_weight_update()
        try:
            self.client.update_weights({"step": self._step})
        except BaseException:
            # The workers refuse to start the next update while this one is active.
            with suppress(Exception):
                self.client.finish_weight_update()
            raise
        self.client.finish_weight_update(weight_version=str(self._step))

    def shutdown(self) -> None:
        if self._served is not None:
            self._served.close()
            self._served = None


def register() -> None:
    """Makes both engines known to vLLM. It is the entry point, which vLLM calls in each process, and more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    for factory, name in (
        (WeightTransferEngineFactory, "SlacklineWeightTransferEngine"),
        (WeightTransferTrainerFactory, "SlacklineTrainerEngine"),
    ):
        try:
            factory.register_engine(NAME, __name__, name)
        except ValueError:
            pass  # registered before
