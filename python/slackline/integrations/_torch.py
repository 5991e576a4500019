"""What the plug-ins with tensors of torch share: a state of them as a table, and a text that says what is where."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from slackline import Snapshot

TREE = "tree"
"""The tensor, of bytes, that says what the numbered ones are."""

_MAPS: dict[str, Callable[[dict[Any, Any]], Any]] = {"Counter": Counter, "OrderedDict": OrderedDict}
"""The mappings that come back as what they were; others come back as dict."""


def host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as DLPack hands it over: in memory of the host, without a gradient and without a lazy conjugate, and in
    order, since torch copies a transposed one much faster."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def text(value: object) -> torch.Tensor:
    """A value as the bytes of its JSON."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def value(snapshot: Snapshot, name: str = TREE) -> Any:
    """The value of `text`, out of a version."""
    return json.loads(bytes(memoryview(snapshot[name])).rstrip(b"\0"))  # type: ignore[arg-type, unused-ignore]


def flatten(state: object) -> tuple[Any, list[torch.Tensor]]:
    """A tree of JSON in which the tensors of a state are numbers, and the tensors.

    Nothing is pickled: what reads the tree can build containers, numbers, texts and tensors, and run nothing.
    """
    tensors: list[torch.Tensor] = []

    def walk(node: object) -> Any:
        if isinstance(node, torch.Tensor):
            if hasattr(node, "to_local"):  # a DTensor: only the receiver knows its mesh
                return {"sharded": walk(node.to_local())}
            if node.numel() == 0:  # its shape and its type are all that there is to send
                return {"empty": list(node.shape), "dtype": str(node.dtype).removeprefix("torch.")}
            tensors.append(node)
            return {"tensor": len(tensors) - 1}
        if isinstance(node, Mapping):
            pairs = [[walk(key), walk(item)] for key, item in node.items()]
            known = [name for name, kind in _MAPS.items() if type(node) is kind]
            return {"map": pairs, "type": known[0]} if known else {"map": pairs}
        if isinstance(node, tuple) and not hasattr(node, "_fields"):
            return {"tuple": [walk(item) for item in node]}
        if isinstance(node, list):
            return [walk(item) for item in node]
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise TypeError(
            f"a {type(node).__name__} is in the state: only tensors, numbers, texts and containers can be sent"
        )

    return walk(state), tensors


def rebuild(tree: Any, tensor: Callable[[int], torch.Tensor], template: object = None) -> Any:
    """The state of a tree. `template`, a state of the same form, has the mesh of sharded tensors and takes the values."""
    like: Any
    if isinstance(tree, list):
        like = template if isinstance(template, list) and len(template) == len(tree) else [None] * len(tree)
        return [rebuild(item, tensor, part) for item, part in zip(tree, like, strict=True)]
    if not isinstance(tree, dict):
        return tree
    ((kind, inner),) = ((kind, inner) for kind, inner in tree.items() if kind not in ("dtype", "type"))
    if kind == "tensor":
        return tensor(int(inner))
    if kind == "empty":
        return torch.empty(inner, dtype=getattr(torch, tree["dtype"]), device="cpu")
    if kind == "tuple":
        like = template if isinstance(template, tuple) and len(template) == len(inner) else [None] * len(inner)
        return tuple(rebuild(item, tensor, part) for item, part in zip(inner, like, strict=True))
    if kind == "sharded":
        local = getattr(template, "to_local", None)
        if local is None:
            raise TypeError("the state has sharded tensors: give the transport a `state_dict` that has them, too")
        with torch.no_grad():
            local().copy_(rebuild(inner, tensor))
        return template
    if kind != "map":
        raise ValueError(f"the state has a {kind!r}, which this version does not know")
    known = template if isinstance(template, Mapping) else {}
    keys = [(rebuild(key, tensor), item) for key, item in inner]
    rebuilt = {key: rebuild(item, tensor, known.get(key)) for key, item in keys}
    return _MAPS[tree["type"]](rebuilt) if "type" in tree else rebuilt
