"""A small stand-in for the part of vLLM that the weight transfer engine is written for, where vLLM is not installed.

It has the calls, the registries and the signatures of vLLM 0.33, and none of its code. With SLACKLINE_VLLM, the folder
of an unpacked wheel of vLLM, the base classes and the registries are vLLM's own, and the rest of it stays a stand-in.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")
PACKAGE = "vllm.distributed.weight_transfer"

calls: list[str] = []
"""What was asked of the loader of models."""


@dataclass
class WeightTransferInitInfo:
    pass


@dataclass
class WeightTransferUpdateInfo:
    pass


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class WeightTransferEngine(ABC, Generic[A, B]):
    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.model_config = vllm_config.model_config

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))  # type: ignore[attr-defined]

    def parse_init_info(self, init_dict: dict[str, Any]) -> A:
        return self.init_info_cls(**init_dict)  # type: ignore[attr-defined, no-any-return]

    @abstractmethod
    def init_transfer_engine(self, init_info: A) -> None: ...
    @abstractmethod
    def start_weight_update(self) -> None: ...
    @abstractmethod
    def finish_weight_update(self) -> None: ...
    @abstractmethod
    def receive_weights(self, update_info: B) -> None: ...
    @abstractmethod
    def shutdown(self) -> None: ...


class TrainerWeightTransferEngine(ABC, Generic[A]):
    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True, rank: int = 0) -> None:
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: A, *, client: Any, source: Any = None) -> Any: ...
    @abstractmethod
    def send_weights(self) -> None: ...


def registry() -> Any:
    class Factory:
        known: ClassVar[dict[str, tuple[str, str]]] = {}

        @classmethod
        def register_engine(cls, name: str, module: str, class_name: str) -> None:
            if name in cls.known:
                raise ValueError(f"{name} is registered")
            cls.known[name] = module, class_name

        @classmethod
        def of(cls, name: str) -> Any:
            module, class_name = cls.known[name]
            return getattr(importlib.import_module(module), class_name)

        @classmethod
        def create_engine(cls, config: Any, vllm_config: Any, device: Any, model: Any) -> Any:
            return cls.of(config.backend)(config, vllm_config, device, model)

        @classmethod
        def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
            return cls.of(init_info.backend).trainer_init(init_info, client=client, source=source)

    return Factory


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(names)
    sys.modules[name] = made
    return made


def install() -> str:
    """Puts the stand-in where vLLM would be, and says what the base classes are."""
    for name in (
        "vllm",
        "vllm.config",
        "vllm.distributed",
        PACKAGE,
        "vllm.model_executor",
        "vllm.model_executor.model_loader",
    ):
        module(name)
    module("vllm.config.parallel", ParallelConfig=object)
    module("vllm.config.weight_transfer", WeightTransferConfig=object)
    module("vllm.logger", init_logger=__import__("logging").getLogger)
    module(
        "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=lambda _model: calls.append("initialize"),
        finalize_layerwise_reload=lambda _model, _config: calls.append("finalize"),
    )
    wheel = os.environ.get("SLACKLINE_VLLM")
    if wheel is None:
        bases = WeightTransferInitInfo, WeightTransferUpdateInfo, TrainerInitInfo
        engines = WeightTransferEngine, TrainerWeightTransferEngine
        module(f"{PACKAGE}.base", **{one.__name__: one for one in (*bases, *engines)})
        module(f"{PACKAGE}.factory", WeightTransferEngineFactory=registry(), WeightTransferTrainerFactory=registry())
        return "a stand-in"
    for name in ("base", "factory"):
        path = Path(wheel, *PACKAGE.split("."), f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"{PACKAGE}.{name}", path)
        assert spec is not None and spec.loader is not None
        loaded = sys.modules[f"{PACKAGE}.{name}"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    if not torch.cuda.is_available():
        torch.accelerator.synchronize = lambda *_arguments: None  # vLLM waits for a device, and here is none
    return "vLLM's own"
