"""What the table of peers compares. Each library is used as its documentation shows."""

from __future__ import annotations

from contender import Contender
from frameworks import Gloo, Mpi, Ray, TorchFT, TorchRL
from messaging import Iceoryx, Mooncake, Nixl, Redis, Zenoh
from own import FileOverwritten, FileRenamed, Slackline, SlacklinePin, SlacklineSwap

CONTENDERS: dict[str, type[Contender]] = {
    "slackline, pin": SlacklinePin,
    "slackline, pull": Slackline,
    "slackline, prefetch and swap": SlacklineSwap,
    "ray put and get": Ray,
    "TorchRL shared memory": TorchRL,
    "torchft HTTP": TorchFT,
    "gloo broadcast": Gloo,
    "MPI broadcast": Mpi,
    "iceoryx2": Iceoryx,
    "redis": Redis,
    "zenoh": Zenoh,
    "file on tmpfs, renamed": FileRenamed,
    "file on tmpfs, overwritten": FileOverwritten,
    "NIXL": Nixl,
    "Mooncake": Mooncake,
}
