"""A tensor transport of Ray: the tensors that an actor returns or puts are versions that other actors read.

    import slackline.integrations.ray
    slackline.integrations.ray.register()  # in the driver, before it makes the actors

    class Trainer:  # an actor
        @ray.method(tensor_transport="slackline")
        def weights(self):
            return self.model.state_dict()

    ray.get(sampler.load.remote(trainer.weights.remote()))  # read by the sampler, out of the trainer's memory

The tensors are copied when the method returns or `ray.put` is called: the trainer may change its own at once, and what
the other actors read stays whole. They come back on the kind of device that they were on, or in memory of the host
where the reading process has none of that kind. Between hosts set SLACKLINE_RAY_ADDRESS ("0.0.0.0:0") for the actors,
and the secret that they share: the object says the address that Ray knows the trainer's host by. A read has 60 s to
connect and 60 s to copy, or what SLACKLINE_RAY_TIMEOUT says for the actor that reads.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from ray.experimental import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)

from slackline import Publisher, Reader

from ._hosts import reachable
from ._reads import timeout
from ._torch import host

__all__ = ["NAME", "SlacklineMetadata", "SlacklineTransport", "register"]

NAME = "SLACKLINE"
"""The name of the transport, in the capitals that Ray gives it."""


@dataclass
class SlacklineMetadata(TensorTransportMetadata):
    """Where the tensors of an object are."""

    address: str = ""


class SlacklineTransport(TensorTransportManager):
    """One publisher for each object that is alive; each process that needs the object reads."""

    def __init__(self) -> None:
        self._served: dict[str, tuple[Publisher | None, SlacklineMetadata]] = {}
        self._lock = threading.Lock()

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> SlacklineMetadata:
        with self._lock:
            # Ray may ask again, when the tensors have changed already: an object stays as it was.
            if obj_id in self._served:
                return self._served[obj_id][1]
        devices = {tensor.device.type for tensor in rdt_object}
        if len(devices) > 1:
            raise ValueError(f"the tensors of an object are on one kind of device, and these are on {sorted(devices)}")
        metadata = SlacklineMetadata(
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in rdt_object],
            tensor_device=next(iter(devices), None),
        )
        publisher = None
        table = {str(index): host(tensor) for index, tensor in enumerate(rdt_object) if tensor.numel()}
        if table:
            # There may be as many of them as there are objects, and each has one version, which comes at once.
            address = os.environ.get("SLACKLINE_RAY_ADDRESS")
            publisher = Publisher(table, address=address, frames=2)
            publisher.publish(table)
            metadata.address = reachable(publisher.address)
        with self._lock:
            served, kept = self._served.setdefault(obj_id, (publisher, metadata))
        if publisher is not None and served is not publisher:  # another thread was asked meanwhile, and was first
            publisher.close()
        return kept

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        assert isinstance(tensor_transport_metadata, SlacklineMetadata)
        found: dict[str, torch.Tensor] = {}
        if tensor_transport_metadata.address:
            within = timeout()
            with Reader(tensor_transport_metadata.address, timeout=within) as reader:
                snapshot = reader.pull(min_version=1, timeout=within)
            found = {name: snapshot[name].torch() for name in snapshot}
        tensors = []
        for index, (shape, dtype) in enumerate(tensor_transport_metadata.tensor_meta):
            there: Any = {"size": shape, "dtype": dtype, "device": "cpu"}
            tensors.append(found[str(index)] if str(index) in found else torch.empty(**there))
        if target_buffers is None:
            device = tensor_transport_metadata.tensor_device
            # A process without such a device, as a sampler may be, gets them in memory of the host.
            if device is None or not _has(device):
                return tensors
            return [tensor.to(device) for tensor in tensors]
        # The buffers are written only now that all is here, so that a failed transfer leaves them as they were.
        for buffer, tensor in zip(target_buffers, tensors, strict=True):
            buffer.copy_(tensor)
        return target_buffers

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("the receiver reads; nothing is sent")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]) -> None:
        with self._lock:
            publisher, _ = self._served.pop(obj_id, (None, None))
        if publisher is not None:
            publisher.close()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing: a read has a deadline, and no writer waits for it."""


def _has(device: str) -> bool:
    """Whether this process has a device of a kind that torch names so."""
    kinds = (getattr(torch, device, None), getattr(torch.backends, device, None))
    return device in ("cpu", "meta") or any(getattr(kind, "is_available", bool)() for kind in kinds)


def register() -> None:
    """Makes the transport known as "slackline", for tensors of torch in the memory of the host and of CUDA devices."""
    register_tensor_transport(NAME, ["cpu", "cuda"], SlacklineTransport, torch.Tensor)
