"""A weight synchronisation scheme of TorchRL by which a collector's workers act on whole versions.

    from slackline.integrations.torchrl import SlacklineWeightSyncScheme

    collector = MultiSyncCollector(
        [make_env, make_env], policy, weight_sync_schemes={"policy": SlacklineWeightSyncScheme()}, ...
    )
    collector.update_policy_weights_(policy)  # as ever

The trainer publishes. A thread of each worker copies every newer version that it finds beside the one in use, and the
policy takes it over at the beginning of its next call, in the thread that calls it: no call sees the weights of two
versions. Threads that call one policy have to take turns: the call of one of them writes the weights that a call of
another one still reads. What reads the weights without calling the policy, such as a compiled copy of it, does not take
them over.
`transport="tcp"` serves workers on other hosts, with an `address` such as "0.0.0.0:0" and a `secret`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.weight_update import WeightSyncScheme
from torchrl.weight_update.utils import _resolve_model
from torchrl.weight_update.weight_sync_schemes import register_weight_sync_backend

from slackline import DeadlineError, Error, OutOfTurn, Publisher, Reader, Snapshot

from ._hosts import reachable
from ._torch import host

__all__ = ["SlacklineTransport", "SlacklineWeightSyncScheme"]

_TURN = 0.2
"""Seconds after which a thread that waits for a version looks whether it shall end."""


def _flat(weights: Any) -> dict[str, torch.Tensor]:
    """Weights in any form that TorchRL has, by dotted names, as they can be published."""
    if isinstance(weights, TensorDictBase):
        weights = weights.flatten_keys(".").to_dict()
    elif any(isinstance(item, dict | TensorDictBase) for item in weights.values()):
        weights = TensorDict(weights).flatten_keys(".").to_dict()
    return {name: host(tensor) for name, tensor in weights.items()}


def _nested(snapshot: Snapshot) -> TensorDictBase:
    """The weights of a version, as a collector takes them."""
    return TensorDict({name: snapshot[name].torch() for name in snapshot}, []).unflatten_keys(".")


class SlacklineTransport:
    """The publisher, in the trainer, or the reader and its newest version, in a worker."""

    def __init__(self, options: dict[str, Any], timeout: float, sync: bool) -> None:
        self.address: str | None = None
        self.version = 0
        """The version that was sent, or that the model has."""
        self._options, self._timeout, self._sync = options, timeout, sync
        self._publisher: Publisher | None = None
        self._reader: Reader | None = None
        self._staged: deque[Snapshot] = deque(maxlen=1)
        self._applying = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        # TorchRL sends the scheme to its workers: the address goes, the publisher stays.
        return {"options": self._options, "timeout": self._timeout, "sync": self._sync, "address": self.address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["timeout"], state["sync"])  # type: ignore[misc]
        self.address = state["address"]

    def for_receiver(self) -> SlacklineTransport:
        """This transport as a worker sees it, also in one that was forked."""
        there = SlacklineTransport(self._options, self._timeout, self._sync)
        there.address = self.address
        return there

    def open(self, weights: Any) -> None:
        """Begins to listen, with a table for these weights."""
        self._publisher = Publisher(_flat(weights), **{"readers": 1024, **self._options})
        self.address = reachable(self._publisher.address)

    def send_weights(self, weights: Any) -> None:
        if self._publisher is None:
            raise RuntimeError("the scheme is not initialised on the sender")
        if weights is None:
            raise ValueError("there are no weights to send: pass them, or a policy that is a module")
        self.version = self._publisher.publish(_flat(weights), timeout=self._timeout)

    def wait_ack(self) -> None:
        """Waits until every connected worker has copied the version. Its thread then hands it to the policy, whose next
        call begins with it; a call that begins in that moment still has the version before."""
        if self._sync and self._publisher is not None:
            self._publisher.wait(self.version, timeout=self._timeout)

    def setup_connection_and_weights_on_sender(self) -> None:
        """Nothing: the scheme publishes, and a worker that comes later reads the newest version."""

    def setup_connection_and_weights_on_receiver(
        self, *, worker_idx: int | None = None, weights: Any = None, model: Any = None, strategy: Any = None
    ) -> TensorDictBase:
        if self.address is None:
            raise RuntimeError("the scheme was not initialised on the sender before the worker was started")
        self._reader = Reader(self.address, timeout=self._timeout, secret=self._options.get("secret"))
        snapshot = self._reader.pull(min_version=1, timeout=self._timeout)
        self.version = snapshot.version
        # The thread knows the transport weakly, so that a scheme that is dropped ends it.
        arguments = (weakref.ref(self), self._reader, self._end, self.version)
        self._thread = threading.Thread(target=_stage, args=arguments, daemon=True, name="slackline-weights")
        self._thread.start()
        # A policy may come without memory of its own, and then keeps these.
        return _nested(snapshot).clone()

    @property
    def is_behind(self) -> bool:
        """Whether a newer version is here than the model has."""
        return bool(self._staged)

    def receive_weights(
        self, timeout: float | None = None, *, weights: Any = None, model: Any = None, strategy: Any = None
    ) -> TensorDictBase | None:
        """Gives the model the newest version, if it is newer; waits for one if there is a timeout."""
        until = time.monotonic() + (timeout or 0)
        while True:
            # Threads that ask apply one version after the other, in their order.
            with self._applying:
                if self._staged:
                    snapshot = self._staged.popleft()
                    found = _nested(snapshot)
                    if model is not None and strategy is not None:
                        strategy.apply_weights(model, found)
                    self.version = snapshot.version
                    return found
            if time.monotonic() >= until:
                return None
            self._end.wait(0.001)

    def close(self) -> None:
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for end in (self._reader, self._publisher):
            if end is not None:
                end.close()
        self._publisher = self._reader = self._thread = None


def _stage(transport: weakref.ref[SlacklineTransport], reader: Reader, end: threading.Event, newest: int) -> None:
    """Keeps the newest version at hand. It alone uses the reader."""
    while not end.is_set():
        try:
            snapshot = reader.pull(min_version=newest + 1, timeout=_TURN)
        except DeadlineError:
            if transport() is None:
                return
            continue
        except OutOfTurn:
            return
        except Error:
            # The trainer is gone. The worker goes on with what it has, until a trainer listens there again.
            if end.wait(_TURN) or transport() is None:
                return
            try:
                reader.reconnect(timeout=1.0)
                newest = 0
            except Error:
                pass
            continue
        there = transport()
        if there is None:
            return
        there._staged.append(snapshot)
        newest = snapshot.version
        del there, snapshot


@register_weight_sync_backend("slackline")
class SlacklineWeightSyncScheme(WeightSyncScheme):
    """Versions of the weights of one model, published by the trainer and read by the workers.

    With `sync`, `send` returns when every connected worker holds the version. The other options are those of
    `slackline.Publisher`.
    """

    def __init__(
        self, strategy: Any = "tensordict", *, sync: bool = True, timeout: float = 60.0, **options: Any
    ) -> None:
        super().__init__(strategy)
        self.sync = sync
        self._hook: Any = None
        self.shared_transport = SlacklineTransport(options, timeout, sync)

    def create_transport(self, **_arguments: Any) -> SlacklineTransport:
        transport = self.shared_transport
        assert isinstance(transport, SlacklineTransport)
        return transport

    @property
    def version(self) -> int:
        """The version that was sent last, or that the model has."""
        return self.create_transport().version

    def _init_on_sender_impl(
        self,
        *,
        model_id: str | None = None,
        context: Any = None,
        weights: Any = None,
        model: Any = None,
        **_devices: Any,
    ) -> None:
        self.model_id, self.context = model_id, context
        if weights is None and model is None and context is not None:
            model = _resolve_model(context, model_id)
            factories = getattr(context, "policy_factory", None) or [None]
            if model is None and model_id == "policy" and factories[0] is not None:
                if any(factory is not factories[0] for factory in factories):
                    raise ValueError(
                        "the workers have different policies, and a scheme publishes one: give each its own"
                    )
                model = factories[0]()
        self._first = self.prepare_weights(model if weights is None else weights, model_id, self._strategy, context)
        if self._first is None:
            raise ValueError("pass the scheme weights, a model, or a context whose model is a module")
        self.create_transport().open(self._first)

    def _setup_connection_and_weights_on_sender_impl(self, *, worker_idx: Any = None, weights: Any = None) -> None:
        self.create_transport().send_weights(self._first if weights is None else weights)
        del self._first

    def send(self, weights: Any = None, worker_ids: int | list[int] | None = None) -> None:
        if worker_ids is not None or (isinstance(weights, dict) and any(isinstance(key, int) for key in weights)):
            raise ValueError(
                "every worker reads the newest version: weights for some of them need a scheme of their own"
            )
        super().send(weights)

    def _init_on_receiver_impl(
        self, model_id: str, context: Any = None, worker_idx: int | None = None, model: Any = None, **_arguments: Any
    ) -> None:
        self.model_id, self.context = model_id, context
        if model is None and context is not None:
            model = context.get_model(model_id) if hasattr(context, "get_model") else _resolve_model(context, model_id)
        self.shared_transport = self.create_transport().for_receiver()
        self.worker_idx = getattr(context, "worker_idx", worker_idx)
        self.model = model

    @property
    def model(self) -> Any:
        return WeightSyncScheme.model.fget(self)

    @model.setter
    def model(self, model: Any) -> None:
        # A collector may copy its policy after the scheme was connected: the hook goes where the weights go.
        WeightSyncScheme.model.fset(self, model)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self.initialized_on_receiver and isinstance(model, torch.nn.Module):
            scheme = weakref.ref(self)

            def take_over(_module: Any, _inputs: Any) -> None:
                there = scheme()
                if there is not None and there.synchronized_on_receiver and there.create_transport().is_behind:
                    there.receive()

            self._hook = model.register_forward_pre_hook(take_over)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_hook": None, "_first": None}

    def shutdown(self) -> None:
        if getattr(self, "_hook", None) is not None:
            self._hook.remove()
            self._hook = None
        super().shutdown()
        if isinstance(getattr(self, "_shared_transport", None), SlacklineTransport):
            self.create_transport().close()
