"""Do TorchRL's workers act on weights of two versions? A program, and the test's means.

    python litmus_torchrl.py shared 10     # TorchRL's own scheme of shared memory, for 10 seconds
    python litmus_torchrl.py slackline 10

A trainer sends weights whose elements are all the number of their version, as fast as it can. A worker calls a policy
that looks at the first and the last element of each weight: an action with two different numbers is torn.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from tensordict import TensorDict
from torchrl.weight_update import SharedMemWeightSyncScheme, WeightSyncScheme

LAYERS, WIDTH = 8, 512


class Look(torch.nn.Module):
    """8 MiB of weights, and an action that is the smallest and the largest element seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.fill(0)

    def fill(self, number: int) -> Look:
        with torch.no_grad():
            for weight in self.parameters():
                weight.fill_(number)
        return self

    def forward(self, observation: Any = None) -> torch.Tensor:
        seen = [weight.data.view(-1)[index] for weight in self.parameters() for index in (0, -1)]
        return torch.stack([min(seen), max(seen)])


def worker(scheme: WeightSyncScheme, pipe: Any) -> None:
    torch.set_num_threads(1)
    model = Look()
    scheme.init_on_receiver(model_id="policy", model=model, worker_idx=0)
    scheme.connect(worker_idx=0)
    pipe.send("ready")
    calls = torn = 0
    versions = set()
    while not pipe.poll():
        low, high = model().tolist()
        calls, torn = calls + 1, torn + (low != high)
        versions.add(high)
    pipe.recv()
    pipe.send((calls, torn, len(versions), model()[1].item()))
    pipe.recv()
    scheme.shutdown()


def run(scheme: Any, seconds: float) -> tuple[int, int, int, int]:
    """Calls, torn calls, versions seen, and versions sent. The last version is seen, or it is an error."""
    torch.set_num_threads(1)
    context: Any = mp.get_context("spawn")
    model = Look().fill(1)
    here, there = context.Pipe()
    where = {"devices": [torch.device("cpu")]} if isinstance(scheme, SharedMemWeightSyncScheme) else {}
    scheme.init_on_sender(weights=TensorDict.from_module(model), model_id="policy", **where)
    child = context.Process(target=worker, args=(scheme, there), daemon=True)
    child.start()
    try:
        scheme.connect()
        assert here.poll(60) and here.recv() == "ready"
        sent, until = 1, time.monotonic() + seconds
        while time.monotonic() < until:
            sent += 1
            scheme.send(TensorDict.from_module(model.fill(sent)))
        here.send("enough")
        assert here.poll(60)
        calls, torn, versions, last = here.recv()
        assert last == sent, f"the worker ended with version {last} of {sent}"
        here.send("end")
        child.join(30)
        return calls, torn, versions, sent
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        scheme.shutdown()


def main() -> None:
    from slackline.integrations.torchrl import SlacklineWeightSyncScheme

    schemes = {
        "shared": SharedMemWeightSyncScheme,
        "shared-async": lambda: SharedMemWeightSyncScheme(sync=False),
        "slackline": SlacklineWeightSyncScheme,
        "slackline-async": lambda: SlacklineWeightSyncScheme(sync=False),
    }
    calls, torn, versions, sent = run(schemes[sys.argv[1]](), float(sys.argv[2]))
    print(f"{sys.argv[1]}: {calls} calls, {torn} torn, {versions} of {sent} versions seen")


if __name__ == "__main__":
    main()
