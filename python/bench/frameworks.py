"""Frameworks of training, as the table of peers uses them: Ray, TorchRL, torchft, torch.distributed and MPI."""

from __future__ import annotations

import re
import socket
import time
import urllib.error
from typing import Any, cast

import numpy as np
from contender import PATIENCE, Array, Contender, Late, until


class Ray(Contender):
    packages = ("ray",)
    preload = ("ray",)
    held = 0.0
    serves = 5.0

    def start(self) -> Any:
        import ray

        store = max(4 * self.size + (64 << 20), 200 << 20)
        options: dict[str, Any] = {"object_store_memory": store, "include_dashboard": False, "log_to_driver": False}
        ray.init("local", num_cpus=1, namespace="peers", **options)

        class Newest:
            """Tells the readers the newest reference."""

            def __init__(self) -> None:
                import asyncio

                self.version, self.refs = 0, cast(Any, None)
                self.is_newer = asyncio.Condition()

            async def set(self, version: int, refs: Any) -> None:
                async with self.is_newer:
                    self.version, self.refs = version, refs
                    self.is_newer.notify_all()

            async def get(self, version: int) -> Any:
                async with self.is_newer:
                    await self.is_newer.wait_for(lambda: self.version >= version)
                    return self.refs

        newest: Any = ray.remote(num_cpus=0)(Newest)
        self.ray, self.newest = ray, newest.options(name="newest").remote()
        return ray.get_runtime_context().gcs_address

    def publish(self, array: Array, version: int) -> None:
        self.ray.get(self.newest.set.remote(version, [self.ray.put(array)]), timeout=PATIENCE)

    def connect(self, address: Any, rank: int) -> None:
        import ray

        ray.init(address, namespace="peers", log_to_driver=False)
        self.ray, self.newest = ray, ray.get_actor("newest")

    def receive(self, version: int) -> Array:
        (reference,) = self.ray.get(self.newest.get.remote(version), timeout=PATIENCE)
        array: Array = self.ray.get(reference, timeout=PATIENCE)
        return array

    def close(self) -> None:
        self.ray.shutdown()


class TorchRL(Contender):
    packages = ("torchrl", "torch")
    preload = ("torchrl.weight_update",)
    held = 0.0

    def _module(self) -> Any:
        import torch

        module = torch.nn.Module()
        weight = torch.zeros(self.elements, dtype=torch.int64)
        module.register_parameter("w", torch.nn.Parameter(weight, requires_grad=False))
        return module

    def start(self) -> Any:
        import torch
        from tensordict import TensorDict
        from torchrl.weight_update import SharedMemWeightSyncScheme

        self.scheme, self.wrap = SharedMemWeightSyncScheme(), TensorDict
        weights = TensorDict.from_module(self._module())
        cpu = [torch.device("cpu")] * self.readers
        self.scheme.init_on_sender(weights=weights, model_id="policy", devices=cpu, num_workers=self.readers)
        return self.scheme

    def started(self) -> None:
        self.scheme.connect()

    def publish(self, array: Array, version: int) -> None:
        import torch

        self.scheme.send(self.wrap({"w": torch.from_numpy(array.view("int64"))}))

    def connect(self, address: Any, rank: int) -> None:
        self.module = self._module()
        address.init_on_receiver(model_id="policy", model=self.module, worker_idx=rank)
        address.connect(worker_idx=rank)
        self.scheme = address

    def receive(self, version: int) -> Array:
        until(lambda: bool(self.module.w.data[-1].item() >= version))
        array: Array = self.module.w.data.numpy().view("uint64")
        return array


class TorchFT(Contender):
    packages = ("torchft", "torch")
    preload = ("torchft.checkpointing.http_transport",)
    held = 2.0

    def _transport(self) -> Any:
        from datetime import timedelta

        from torchft.checkpointing.http_transport import HTTPTransport

        self.patience = timedelta(seconds=PATIENCE)
        return HTTPTransport(self.patience, num_chunks=0)

    def start(self) -> Any:
        import torch

        self.transport, self.state = self._transport(), torch.zeros(self.elements, dtype=torch.int64)
        return self.transport.metadata()

    def publish(self, array: Array, version: int) -> None:
        import torch

        # Waits for the readers of the version before, as torchft's Manager does ahead of each step of the optimiser.
        self.transport.disallow_checkpoint()
        self.state.copy_(torch.from_numpy(array.view("int64")))
        ranks = list(range(1, self.readers + 1))
        self.transport.send_checkpoint(ranks, version, {"w": self.state}, self.patience)

    def connect(self, address: Any, rank: int) -> None:
        self.transport, self.address = self._transport(), address

    def receive(self, version: int) -> Array:
        end, step = time.monotonic() + PATIENCE, version
        while time.monotonic() < end:
            try:
                state = self.transport.recv_checkpoint(0, self.address, step, self.patience)
            except urllib.error.HTTPError as error:
                # A step is asked for by its number, and an error if another one is there.
                served = re.search(r"serving (-?\d+)", str(error))
                step = max(version, int(served[1]) if served else 0)
                time.sleep(0.001)
                continue
            array: Array = state["w"].numpy().view("uint64")
            return array
        raise Late


class Gloo(Contender):
    packages = ("torch",)
    preload = ("torch.distributed",)
    is_collective = True

    def _join(self, port: int, rank: int) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        self.broadcast, self.zeros = dist.broadcast, torch.zeros(self.elements, dtype=torch.int64)
        where = f"tcp://127.0.0.1:{port}"
        patience = timedelta(seconds=PATIENCE)
        dist.init_process_group("gloo", where, timeout=patience, world_size=self.readers + 1, rank=rank)

    def start(self) -> Any:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        return self.port

    def started(self) -> None:
        self._join(self.port, 0)

    def publish(self, array: Array, version: int) -> None:
        import torch

        self.broadcast(torch.from_numpy(array.view("int64")), 0)

    def connect(self, address: Any, rank: int) -> None:
        self._join(address, rank + 1)

    def receive(self, version: int) -> Array:
        self.broadcast(self.zeros, 0)
        array: Array = self.zeros.numpy().view("uint64")
        return array


class Mpi(Contender):
    packages = ("mpi4py",)
    is_collective = True

    def _world(self) -> Any:
        from mpi4py import MPI

        return MPI.COMM_WORLD

    def started(self) -> None:
        self.world = self._world()

    def publish(self, array: Array, version: int) -> None:
        self.world.Bcast(array, 0)

    def connect(self, address: Any, rank: int) -> None:
        self.world, self.array = self._world(), np.zeros(self.elements, "uint64")

    def receive(self, version: int) -> Array:
        self.world.Bcast(self.array, 0)
        return self.array
