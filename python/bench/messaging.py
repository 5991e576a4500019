"""Libraries that move bytes, as the table of peers uses them: iceoryx2, redis, zenoh, NIXL and Mooncake."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import tempfile
import time
from typing import Any

import numpy as np
from contender import PATIENCE, Array, Contender, Late, raw, until


class Iceoryx(Contender):
    packages = ("iceoryx2",)
    held = 0.0
    serves = 6.0

    def _service(self, name: str) -> Any:
        import iceoryx2 as iox2

        iox2.set_log_level(iox2.LogLevel.Fatal)
        self.node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        service = self.node.service_builder(iox2.ServiceName.new(name)).publish_subscribe(iox2.Slice[ctypes.c_uint8])
        service = service.enable_safe_overflow(True).subscriber_max_buffer_size(1).history_size(1)
        return service.max_subscribers(16).subscriber_max_borrowed_samples(2).open_or_create()

    def start(self) -> Any:
        name = f"peers-{os.getpid()}"
        self.service = self._service(name)
        self.publisher = self.service.publisher_builder().initial_max_slice_len(self.size).create()
        return name

    def publish(self, array: Array, version: int) -> None:
        sample = self.publisher.loan_slice_uninit(self.size)
        ctypes.memmove(sample.payload_ptr, array.ctypes.data, self.size)
        sample.assume_init().send()

    def connect(self, address: Any, rank: int) -> None:
        self.service = self._service(address)
        self.subscriber = self.service.subscriber_builder().create()

    def receive(self, version: int) -> Array:
        self.sample: Any = None
        found: list[Array] = []

        def newest() -> bool:
            sample = self.subscriber.receive()
            if sample is None:
                return False
            self.sample = sample
            words: Any = (ctypes.c_uint64 * self.elements).from_address(sample.payload_ptr)
            found[:] = [np.frombuffer(words, "uint64")]
            return bool(found[0][0] >= version)

        until(newest)
        return found[0]


class Redis(Contender):
    packages = ("redis",)
    part = 256 << 20
    held = 2.0
    serves = 3.0

    def start(self) -> Any:
        self.folder = tempfile.TemporaryDirectory()
        path = f"{self.folder.name}/socket"
        options = ["--unixsocket", path, "--port", "0", "--save", "", "--dir", self.folder.name]
        self.server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        until(lambda: os.path.exists(path))
        self.connect(path, 0)
        return path

    def publish(self, array: Array, version: int) -> None:
        whole = raw(array)
        with self.client.pipeline(transaction=True) as calls:
            for index, start in enumerate(range(0, self.size, self.part)):
                calls.set(f"w{index}", whole[start : start + self.part])
            calls.set("version", version)
            calls.execute()

    def connect(self, address: Any, rank: int) -> None:
        import redis

        self.client = redis.Redis(unix_socket_path=address)

    def receive(self, version: int) -> Array:
        until(lambda: int(self.client.get("version") or 0) >= version)
        with self.client.pipeline(transaction=True) as calls:
            for index in range(-(-self.size // self.part)):
                calls.get(f"w{index}")
            parts = calls.execute()
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), "uint64")

    def close(self) -> None:
        self.server.kill()
        self.server.wait()


class Zenoh(Contender):
    packages = ("eclipse-zenoh",)
    held = 2.0
    serves = 3.0

    def _open(self, **endpoints: str) -> Any:
        import zenoh

        config = zenoh.Config()
        config.insert_json5("scouting/multicast/enabled", "false")
        for kind, endpoint in endpoints.items():
            config.insert_json5(f"{kind}/endpoints", f'["{endpoint}"]')
        return zenoh.open(config)

    def start(self) -> Any:
        import zenoh

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = f"tcp/127.0.0.1:{probe.getsockname()[1]}"
        self.session = self._open(listen=endpoint)
        blocks = zenoh.CongestionControl.BLOCK
        self.publisher = self.session.declare_publisher("weights", congestion_control=blocks)
        return endpoint

    def publish(self, array: Array, version: int) -> None:
        self.publisher.put(raw(array).tobytes())

    def connect(self, address: Any, rank: int) -> None:
        import zenoh

        self.session = self._open(connect=address)
        self.subscriber = self.session.declare_subscriber("weights", zenoh.handlers.RingChannel(1))
        time.sleep(1.0)  # until the publisher has heard of it

    def receive(self, version: int) -> Array:
        found: list[Array] = []

        def newest() -> bool:
            sample = self.subscriber.try_recv()
            if sample is not None:
                found[:] = [np.frombuffer(sample.payload.to_bytes(), "uint64")]
            return bool(found) and bool(found[0][0] >= version)

        until(newest)
        return found[0]

    def close(self) -> None:
        self.session.close()


class Nixl(Contender):
    """One-sided reads of the publisher's memory. When it may be written is the application's to agree on."""

    packages = ("nixl",)

    def _agent(self, name: str, array: Array) -> Any:
        from nixl._api import nixl_agent, nixl_agent_config

        agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM")
        return agent

    def start(self) -> Any:
        self.array = np.zeros(self.elements, "uint64")
        self.agent = self._agent("publisher", self.array)
        return self.agent.get_agent_metadata(), self.array.ctypes.data

    def publish(self, array: Array, version: int) -> None:
        np.copyto(self.array, array)

    def connect(self, address: Any, rank: int) -> None:
        metadata, self.remote = address
        self.array = np.zeros(self.elements, "uint64")
        self.agent = self._agent(f"reader{rank}", self.array)
        self.peer = self.agent.add_remote_agent(metadata)

    def _read(self, offset: int, size: int) -> None:
        ends = [[(base + offset, size, 0)] for base in (self.array.ctypes.data, self.remote)]
        local, remote = (self.agent.get_xfer_descs(end, "DRAM") for end in ends)
        handle = self.agent.initialize_xfer("READ", local, remote, self.peer)
        state = self.agent.transfer(handle)
        end = time.monotonic() + PATIENCE
        while state not in ("DONE", "ERR") and time.monotonic() < end:
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise Late

    def receive(self, version: int) -> Array:
        def is_there() -> bool:
            self._read(self.size - 8, 8)
            return bool(self.array[-1] >= version)

        until(is_there)
        self._read(0, self.size)
        return self.array


class Mooncake(Nixl):
    packages = ("mooncake-transfer-engine-non-cuda",)

    def _agent(self, name: str, array: Array) -> Any:
        from mooncake.engine import TransferEngine

        engine = TransferEngine()
        if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("the transfer engine does not start")
        if engine.register_memory(array.ctypes.data, array.nbytes):
            raise RuntimeError("the memory cannot be registered")
        return engine

    def start(self) -> Any:
        self.array = np.zeros(self.elements, "uint64")
        self.agent = self._agent("publisher", self.array)
        return f"127.0.0.1:{self.agent.get_rpc_port()}", self.array.ctypes.data

    def connect(self, address: Any, rank: int) -> None:
        self.peer, self.remote = address
        self.array = np.zeros(self.elements, "uint64")
        self.agent = self._agent(f"reader{rank}", self.array)

    def _read(self, offset: int, size: int) -> None:
        here, there = self.array.ctypes.data + offset, self.remote + offset
        if self.agent.transfer_sync_read(self.peer, here, there, size):
            raise Late
