"""Tensors on a GPU whose bytes tell the version and their offset, for test_gpu.py and the processes that it starts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

torch: Any = importlib.import_module("torch")

#: Cycles for `torch.cuda._sleep`: some tenths of a second.
BUSY = 400_000_000


def bits(tensor: Any) -> Any:
    return tensor.reshape(-1).view(torch.uint8)


def pattern(tensor: Any, version: int) -> Any:
    """The bytes that a tensor of this length has in a version."""
    offsets = torch.arange(tensor.numel() * tensor.element_size(), device="cuda")
    return ((offsets * 131 + version * 7919) % 251).to(torch.uint8)


def fill(tensors: Mapping[str, Any], version: int) -> None:
    for tensor in tensors.values():
        bits(tensor).copy_(pattern(tensor, version))


def holds(tensors: Mapping[str, Any], version: int) -> bool:
    return all(torch.equal(bits(tensor), pattern(tensor, version)) for tensor in tensors.values())


def tensors() -> dict[str, Any]:
    """Odd lengths, tensors in the middle of other memory, a type that numpy lacks, and a scalar."""
    return {
        "bytes": torch.zeros(1004, dtype=torch.uint8, device="cuda")[3:],
        "plain": torch.zeros(17, 3, device="cuda"),
        "bf16": torch.zeros(4099, dtype=torch.bfloat16, device="cuda")[1:],
        "scalar": torch.zeros((), dtype=torch.float64, device="cuda"),
        "large": torch.zeros((3 << 20) + 5, dtype=torch.uint8, device="cuda"),
    }
