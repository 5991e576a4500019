"""Addresses as processes on other hosts reach them."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from slackline import BadOption

VARIABLE = "SLACKLINE_HOST_ADDRESS"
"""The variable of the environment that names this host, by an IP address or by a name, as others reach it."""


def reachable(address: str) -> str:
    """The address of a publisher for readers on other hosts: the host's own where it listens at all that the host has,
    `0.0.0.0` or `[::]`. Raises BadOption if that cannot be found."""
    return ",".join(map(_reachable, address.split(",")))


def beside(address: str) -> str:
    """Another address of the same hosts and transports: ports and names of its own."""
    return ",".join(
        f"{part}-states" if _is_local(part) else f"{part.rpartition(':')[0]}:0" for part in address.split(",")
    )


def _is_local(address: str) -> bool:
    """Whether it is a socket of shared memory."""
    return address.startswith("@") or "/" in address


def _reachable(address: str) -> str:
    if _is_local(address):
        return address
    kind = "verbs:" if address.startswith("verbs:") else ""
    host, _, port = address.removeprefix(kind).rpartition(":")
    try:
        listens = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:  # a name
        return address
    if not listens.is_unspecified:
        return address
    own = next(_own(listens.version), "")
    if not own:
        operation = "finding this host's address"
        cause = f"it has no route to others, and its name {socket.gethostname()!r} leads to no address that they reach"
        remedy = f"set {VARIABLE}, or listen at an address by which others reach this host instead of {address}"
        raise BadOption(f"{operation}: {cause}; {remedy}", operation=operation, remedy=remedy)
    return f"{kind}[{own}]:{port}" if ":" in own and not own.startswith("[") else f"{kind}{own}:{port}"


def _own(version: int) -> Iterator[str]:
    """The addresses by which others may reach this host, the likeliest first."""
    if given := os.environ.get(VARIABLE):
        yield given
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        yield ray.util.get_node_ip_address()
    # Who listens at `[::]` is reached by either version.
    families = [(socket.AF_INET, "192.0.2.1")]
    if version == 6:
        families.insert(0, (socket.AF_INET6, "2001:db8::1"))
    for family, beyond in families:
        if (own := _of_route(family, beyond)) is not None:
            yield own
    for family, _ in families:
        yield from _of_name(family)


def _of_route(family: int, beyond: str) -> str | None:
    """The address of the interface through which the route to another network leads. Nothing is sent there."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((beyond, 9))
        except OSError:  # no route
            return None
        own: str = probe.getsockname()[0]
    return own if _is_of_use(own) else None


def _of_name(family: int) -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, family, socket.SOCK_DGRAM)
    except OSError:
        return []
    return [own for *_, (own, *_) in found if isinstance(own, str) and _is_of_use(own)]


def _is_of_use(own: str) -> bool:
    address = ipaddress.ip_address(own)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)
