"""RLlib's state server with the weights in slackline: they are copied once, and each sampler reads them out of memory.

    import slackline.integrations.rllib
    slackline.integrations.rllib.use_state_server()  # in the driver, before the algorithm is built

    config.env_runners(use_env_runner_state_server=True)  # IMPALA and APPO do this by themselves

The state that the server hands out has a note in the place of the weights. A sampler that unpickles the note reads the
newest version, whole, from the server's process: over shared memory on its host, and elsewhere over TCP, if
SLACKLINE_RLLIB_ADDRESS ("0.0.0.0:0") is set for the server and all have the secret. The note has the address that Ray
knows the server's host by.
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

from slackline import Error, Publisher, Reader

from ._hosts import reachable

__all__ = ["SlacklineStateServer", "use_state_server"]

_TIMEOUT = 60.0
_log = logging.getLogger(__name__)


def _leaves(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The arrays of nested mappings, each by the JSON of its path."""
    if isinstance(state, Mapping):
        for key, item in state.items():
            yield from _leaves(item, (*path, str(key)))
        return
    array = np.asarray(state.detach().cpu() if hasattr(state, "detach") else state)
    if array.dtype == object or array.size == 0:
        raise TypeError(f"the weights {'/'.join(path)} are no array of numbers")
    yield json.dumps(path), array


_readers: dict[str, Reader] = {}
_lock = threading.Lock()


def _read(address: str, version: int) -> dict[str, Any]:
    """The newest weights of a server, at least as new as `version`."""
    with _lock:
        reader = _readers.get(address)
        if reader is None:
            # A server that was started again has a new address: its old one is of no use.
            for old in _readers.values():
                old.close()
            _readers.clear()
            reader = _readers[address] = Reader(address, timeout=_TIMEOUT)
        try:
            snapshot = reader.pull(min_version=version, timeout=_TIMEOUT)
        except Error:
            _readers.pop(address).close()
            raise
        state: dict[str, Any] = {}
        for name in snapshot:
            *path, last = json.loads(name)
            place = state
            for key in path:
                place = place.setdefault(key, {})
            place[last] = snapshot[name].numpy().copy()
        return state


class _Note:
    """Becomes the weights where it is unpickled."""

    def __init__(self, address: str, version: int) -> None:
        self._there = (address, version)

    def __reduce__(self) -> tuple[Callable[[str, int], dict[str, Any]], tuple[str, int]]:
        return _read, self._there


class SlacklineStateServer(EnvRunnerStateServer):  # type: ignore[misc, unused-ignore]
    """Takes the place of RLlib's: the same calls, and the same state to those who pull it."""

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
                if self._publisher is not None:
                    self._publisher.close()
                self._publisher = Publisher(arrays, address=os.environ.get("SLACKLINE_RLLIB_ADDRESS"), readers=1024)
                self._table = table
            version = self._publisher.publish(arrays, step=max(0, int(state[WEIGHTS_SEQ_NO])))
            self._last = call
            super().push({**state, COMPONENT_RL_MODULE: _Note(reachable(self._publisher.address), version)})


def use_state_server() -> None:
    """Has the algorithms that are built from now on in this process use the server of this module."""
    from ray.rllib.algorithms.impala import impala

    impala.EnvRunnerStateServer = SlacklineStateServer  # type: ignore[attr-defined, unused-ignore]
