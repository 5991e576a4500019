"""Models of torch: their states published and pulled, and their training by workers. Tested with torch 2.15.

    import torch, slackline, slackline.torch

    publisher = slackline.Publisher(slackline.torch.table(model))
    slackline.torch.publish(publisher, model, step=100)

    reader = slackline.Reader(publisher.address)  # in another process, with a model of the same form
    snapshot = slackline.torch.pull(reader, model, max_staleness=2)

A *state* is a module or a mapping of names to tensors, such as a state_dict. All types that DLPack and torch share are
published as they are: bfloat16 and the floats of 8 bits, too. Tensors of a device are copied to or from the memory of
the host. Importing `slackline` imports neither this module nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

import slackline
from slackline import Frame, LayoutMismatch, Reader, Snapshot, TensorSpec

__all__ = ["Worker", "load", "parameters", "publish", "pull", "state_dict", "table"]

State = nn.Module | Mapping[str, Tensor]

Loss = TypeVar("Loss", bound=Tensor | float)


def _tensors(state: State, operation: str) -> dict[str, Tensor]:
    """The tensors of a state that have elements: there is nothing to copy of the others."""
    given = state.state_dict() if isinstance(state, nn.Module) else state
    tensors: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            what = type(tensor).__name__
            raise LayoutMismatch(
                f"{operation}: {name!r} is a {what}, and no dense tensor; publish the others as a mapping",
                operation=operation,
            )
        if tensor.numel() > 0:
            tensors[name] = tensor.detach()
    return tensors


def _check_targets(tensors: Mapping[str, Tensor], operation: str) -> None:
    """Fails, before anything is written, for a tensor that a copy cannot be written to."""
    for name, tensor in tensors.items():
        if hasattr(tensor, "to_local"):
            cause, remedy = "is a DTensor", "give a mapping of the local tensors (`to_local`)"
        elif tensor.is_meta:
            cause, remedy = "is on the meta device", "call `module.to_empty(device=...)` first"
        elif any(stride == 0 and side > 1 for side, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            cause, remedy = "has elements that share memory", "make it whole first (`contiguous`)"
        elif tensor.is_inference() and not torch.is_inference_mode_enabled():
            cause, remedy = "was made in inference mode", "call this in `torch.inference_mode()`, too"
        else:
            continue
        raise LayoutMismatch(f"{operation}: {name!r} {cause}; {remedy}", operation=operation, remedy=remedy)


def _check_own(state: State, tensors: Mapping[str, Tensor], operation: str) -> None:
    """Fails if a module's `state_dict` hands out a copy: what is written there does not reach the module."""
    if not isinstance(state, nn.Module):
        return
    # Storages are compared, since a hook may hand out parts of a parameter.
    own = {tensor.untyped_storage()._cdata for tensor in (*state.parameters(), *state.buffers())}
    for name, tensor in tensors.items():
        if tensor.untyped_storage()._cdata not in own:
            remedy = "give a mapping of names to the tensors of the module itself"
            raise LayoutMismatch(
                f"{operation}: the `state_dict` of the module has in {name!r} neither a parameter nor a buffer of it, "
                f"but a copy, and what is written there does not reach the module; {remedy}",
                operation=operation,
                remedy=remedy,
            )


def _sources(snapshot: Snapshot, tensors: Mapping[str, Tensor], operation: str) -> dict[str, Tensor]:
    """The tensors of a snapshot, without a copy. Fails if torch lacks the type of one, or cannot convert it."""
    sources: dict[str, Tensor] = {}
    tried: set[tuple[torch.dtype, torch.dtype, torch.device]] = set()
    for name, tensor in tensors.items():
        view = snapshot[name]
        try:
            source: Tensor = view.torch(read_only=True)
            conversion = (source.dtype, tensor.dtype, tensor.device)
            if source.dtype != tensor.dtype and conversion not in tried:
                # One element tells.
                tensor.as_strided((1,), (1,)).clone().copy_(source.as_strided((1,), (1,)))
                tried.add(conversion)
        except slackline.Error:
            raise
        except (BufferError, RuntimeError) as error:
            remedy = "use a type that torch has, and can convert"
            raise LayoutMismatch(
                f"{operation}: torch cannot copy {name!r}, which is {view.dtype} in the table, into a tensor of "
                f"{tensor.dtype}; {remedy}",
                operation=operation,
                remedy=remedy,
            ) from error
        sources[name] = source
    return sources


def _check(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], operation: str) -> None:
    """Fails unless names and shapes are the same, before anything is written. Tensors of the table without elements
    are ignored, as are those of the state."""
    shapes = {name: shape for name, shape in shapes.items() if 0 not in shape}
    if set(shapes) != set(tensors):
        one, other = sorted(set(shapes) - set(tensors)), sorted(set(tensors) - set(shapes))
        raise LayoutMismatch(
            f"{operation}: the table has {one} and the state does not, which has {other}; use models of one form",
            operation=operation,
        )
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            raise LayoutMismatch(
                f"{operation}: {name!r} is {shapes[name]} in the table and {tuple(tensor.shape)} in the state; use "
                "models of one form",
                operation=operation,
            )


def table(state: State) -> list[TensorSpec]:
    """Names, types and shapes of the tensors of a state, for a `Publisher`. Tensors without elements are left out."""
    tensors = _tensors(state, "laying out the table")
    return [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]


def publish(
    publisher: slackline.Publisher,
    state: State,
    *,
    step: int = 0,
    label: bytes | None = None,
    recorded: bool = False,
    timeout: float = 30.0,
) -> Frame:
    """Copies a state into the next version and publishes it. Returns the frame: its `version`, and its `publication` if
    it was `recorded`. Tensors of another type than the table's are converted as `Tensor.copy_` does.

    Waits and raises as `Publisher.publish` does; after an error the version before is still the newest.
    """
    tensors = _tensors(state, "publishing a version")
    with publisher.frame(step=step, label=label, recorded=recorded, timeout=timeout) as frame:
        _check({name: view.shape for name, view in frame.items()}, tensors, "publishing a version")
        for name, tensor in tensors.items():
            frame[name].torch().copy_(tensor)
    return frame


def state_dict(snapshot: Snapshot) -> dict[str, Tensor]:
    """The tensors of a snapshot where they lie, without a copy: they are to be read, not written (see
    `ArrayView.torch`, also for what the next pull costs). Those of a pin are gone when it ends."""
    return {name: view.torch() for name, view in snapshot.items()}


def load(snapshot: Snapshot, state: State) -> None:
    """Copies a snapshot into the tensors of a state, in place: optimisers and compiled graphs keep their parameters.
    Values are converted to the types of the state.

    Raises LayoutMismatch, before anything is written, if names or shapes differ or torch cannot convert a type; for a
    DTensor, a tensor on the meta device, one whose elements share memory and one that was made in inference mode; and
    for a module whose `state_dict` has copies, as a hook or FSDP makes them: the module would not change. Ctrl-C, or an
    error of a device, while tensors are written leaves some of them written."""
    operation = "loading a snapshot"
    tensors = _tensors(state, operation)
    _check({name: view.shape for name, view in snapshot.items()}, tensors, operation)
    _check_targets(tensors, operation)
    _check_own(state, tensors, operation)
    sources = _sources(snapshot, tensors, operation)
    for name, tensor in tensors.items():
        tensor.copy_(sources[name])


def pull(
    reader: Reader,
    state: State,
    *,
    max_staleness: int | None = None,
    min_version: int = 0,
    version: int | None = None,
    timeout: float = 30.0,
) -> Snapshot:
    """Brings one version, whole, into the tensors of a state, in place. The arguments are those of `Reader.pull`. It
    raises what `Reader.pull` and `load` raise; after an error the state is as it was, but for what `load` says of
    Ctrl-C and devices. To wait less, `Reader.prefetch`, and `load` what `Reader.swap` returns."""
    snapshot = reader.pull(max_staleness=max_staleness, min_version=min_version, version=version, timeout=timeout)
    load(snapshot, state)
    return snapshot


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of a module that are trained, as float32 in memory of the host: what a `Server` begins with."""
    trained = ((name, tensor.detach()) for name, tensor in module.named_parameters() if tensor.requires_grad)
    return {name: tensor.to("cpu", torch.float32) for name, tensor in trained}


class Worker:
    """Trains a module by a worker of slackline, beside the workers of other processes: the servers hold the parameters
    and the optimiser, and the scheme is theirs. They begin with `parameters(module)` of one process::

        server = slackline.Server(slackline.torch.parameters(model), scheme="bsp", workers=2, learning_rate=0.1)

        worker = slackline.torch.Worker(model, slackline.Worker([server.address]))  # in each of two processes
        for x, y in batches:
            def closure():
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss
            worker.step(closure)
        worker.worker.flush()

    The module's parameters are tensors of its own, of any floating type and on any device: they are whole between the
    steps, too. Buffers, such as the running means of a batch norm, stay those of this process.
    """

    def __init__(self, module: nn.Module, worker: slackline.Worker) -> None:
        self.module = module
        self.worker = worker
        self.staleness = 0
        """The number of clocks by which the parameters of the last step were stale."""
        named = dict(module.named_parameters())
        self._trained = {name: tensor for name, tensor in named.items() if tensor.requires_grad and tensor.numel() > 0}
        _check({spec.name: spec.shape for spec in worker.metadata}, self._trained, "training a module")
        _check_targets(self._trained, "training a module")

    def step(self, closure: Callable[[], Loss], *, timeout: float = 30.0) -> Loss:
        """Waits, as the scheme says, for parameters, loads them, calls `closure` and publishes the gradient. `timeout`,
        in seconds, holds for each of the two waits by itself: for the parameters, and for the gradient to be taken.
        `closure` computes the gradients of one batch and returns its loss, a tensor or a number, as that of
        `torch.optim.Optimizer.step` does; gradients are None when it begins, and sparse ones are made dense. Returns
        the loss.

        If `closure` raises, nothing is published, and the next call begins the same clock again. Raises what
        `Worker.step` and `Step.publish` raise. After a DeadlineError whose `operation` is "publishing a gradient", do
        not repeat the batch: its gradient is on its way, the step has ended, and the next call begins the next clock.
        """
        with self.worker.step(timeout=timeout) as step:
            with torch.no_grad():
                for name, tensor in self._trained.items():
                    tensor.copy_(step.parameters[name].torch())
                    tensor.grad = None
            loss = closure()
            for name, tensor in self._trained.items():
                gradient = step.gradient[name].torch()
                if tensor.grad is None:
                    gradient.zero_()
                else:
                    gradient.copy_(tensor.grad if tensor.grad.layout == torch.strided else tensor.grad.to_dense())
            self.staleness = step.staleness
            step.publish(float(loss.detach() if isinstance(loss, Tensor) else loss), timeout=timeout)
        return loss
