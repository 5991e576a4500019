"""RLlib's state server with the weights in slackline: they are copied once, and each sampler reads them out of memory.

    import slackline.integrations.rllib
    slackline.integrations.rllib.use_state_server()  # in the driver, before the algorithm is built

    config.env_runners(use_env_runner_state_server=True)  # IMPALA and APPO do this by themselves

The state that the server hands out has a note instead of the weights. A sampler that unpickles the note reads the
newest version, whole, from the server's process: over shared memory on its host, and elsewhere over TCP, if
SLACKLINE_RLLIB_ADDRESS ("0.0.0.0:0") is set for the server and all have the secret. The note has the address that Ray
knows the server's host by. A read has 60 s to connect and 60 s to copy, or what SLACKLINE_RAY_TIMEOUT says for the
sampler.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import ray
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner_state_server import EnvRunnerStateServer
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from slackline import Error, PeerGone, Publisher, Reader, Snapshot

from ._hosts import reachable
from ._reads import timeout

__all__ = ["SlacklineStateServer", "use_state_server"]

_log = logging.getLogger(__name__)


def _leaves(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The arrays of nested mappings, each by the JSON of its path."""
    if isinstance(state, Mapping):
        for key, item in state.items():
            yield from _leaves(item, (*path, str(key)))
        return
    array = np.asarray(state.detach().cpu() if hasattr(state, "detach") else state)
    if array.dtype == object:
        raise TypeError(f"the weights {'/'.join(path)} are no array of numbers")
    yield json.dumps(path), array


_readers: dict[str, Reader] = {}
_lock = threading.Lock()


def _read(address: str, version: int) -> dict[str, Any]:
    """The newest weights of a server, at least as new as `version`."""
    with _lock:
        snapshot = _pull(address, version)
        state: dict[str, Any] = {}
        for name in snapshot:
            *path, last = json.loads(name)
            node = state
            for key in path:
                node = node.setdefault(key, {})
            node[last] = snapshot[name].numpy().copy()
        return state


def _pull(address: str, version: int) -> Snapshot:
    """The same by the reader of the reads before, which may have lost its connection: the network did, the server was
    started again at its address, or this process was stopped for longer than the lease. Then another reader is made."""
    within = timeout()
    while True:
        reader = _readers.get(address)
        is_new = reader is None
        if reader is None:
            # Another address is that of a later publisher: the ones before are closed.
            for old in _readers.values():
                old.close()
            _readers.clear()
            reader = _readers[address] = Reader(address, timeout=within)
        try:
            return reader.pull(min_version=version, timeout=within)
        except Error as error:
            _readers.pop(address).close()
            if is_new or not isinstance(error, PeerGone):
                raise


class _Note:
    """Becomes the weights where it is unpickled."""

    def __init__(self, address: str, version: int) -> None:
        self._there = (address, version)

    def __reduce__(self) -> tuple[Callable[[str, int], dict[str, Any]], tuple[str, int]]:
        return _read, self._there


class SlacklineStateServer(EnvRunnerStateServer):  # type: ignore[misc, unused-ignore]
    """It is used instead of RLlib's: the same calls, and the same state to those who pull it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._publisher: Publisher | None = None
        self._table: list[tuple[str, Any, Any]] = []
        self._push = threading.Lock()
        self._calls, self._last = itertools.count(1), 0

    def push(self, state: Any) -> None:
        call = next(self._calls)
        if WEIGHTS_SEQ_NO not in state or COMPONENT_RL_MODULE not in state:
            super().push(state)
            return
        try:
            self._publish(state, call)
        except Exception:
            # RLlib does not look at the outcome, and samplers would keep their weights for ever.
            _log.warning("slackline could not publish the weights; they go by ray", exc_info=True)
            with self._push:
                if call > self._last:
                    self._last = call
                    super().push(state)

    def _publish(self, state: Any, call: int) -> None:
        weights = state[COMPONENT_RL_MODULE]
        if isinstance(weights, ray.ObjectRef):
            weights = ray.get(weights)
        arrays = dict(_leaves(weights))
        with self._push:
            if call < self._last:
                # Overtaken by a later call. The number says nothing: a learner that is restored counts from an older one.
                return
            table = [(name, array.dtype, array.shape) for name, array in arrays.items()]
            if self._publisher is None or table != self._table:
                # If the next one cannot be made, a later push tries again.
                before, self._publisher = self._publisher, None
                if before is not None:
                    before.close()
                self._publisher = Publisher(arrays, address=os.environ.get("SLACKLINE_RLLIB_ADDRESS"), readers=1024)
                self._table = table
            version = self._publisher.publish(arrays, step=max(0, int(state[WEIGHTS_SEQ_NO])))
            self._last = call
            super().push({**state, COMPONENT_RL_MODULE: _Note(reachable(self._publisher.address), version)})


def use_state_server() -> None:
    """Has the algorithms that are built from now on in this process use the server of this module."""
    from ray.rllib.algorithms.impala import impala

    impala.EnvRunnerStateServer = SlacklineStateServer  # type: ignore[attr-defined, unused-ignore]
