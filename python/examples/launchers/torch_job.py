"""A module of PyTorch, trained by the workers of a job of one server, by whatever launcher has started it.

    torchrun --nproc-per-node 3 torch_job.py --save model.pt

Rank 0 has the parameters and the optimiser. The other ranks compute gradients, on a GPU where there is one. The first
of them evaluates the module and saves it, now and then and in the end.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import slackline
import slackline.torch


def model() -> nn.Module:
    """The initial values that count are the server's: a worker's are replaced in its first step."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))


def examples(seed: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The module learns to multiply."""
    x = 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) - 1
    return x.to(device), x.prod(1, keepdim=True).to(device)


def evaluate(module: nn.Module, device: torch.device) -> float:
    x, y = examples(0, 512, device)
    module.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(module(x), y)
    module.train()
    return float(loss)


def save(module: nn.Module, path: Path) -> None:
    """The file is whole at each moment."""
    partial = path.with_name(path.name + ".partial")
    torch.save(module.state_dict(), partial)
    os.replace(partial, path)


def device_of(job: slackline.Job) -> torch.device:
    """The ranks of a host take its GPUs by turns. The local rank counts the server of rank 0, too."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", (job.local_rank or 0) % torch.cuda.device_count())


def serve(job: slackline.Job, module: nn.Module, given: argparse.Namespace) -> None:
    initial = slackline.torch.parameters(module)
    _, status = job.serve(initial, scheme="bsp", optimizer="adam", learning_rate=0.01)
    print(f"{job.workers} workers, {status.folded} gradients", flush=True)


def bring_newest(worker: slackline.Worker, module: nn.Module) -> None:
    """A step without `publish` counts for nothing. Under BSP its parameters have the last gradients of all workers."""
    state = module.state_dict()
    with worker.step(timeout=60) as step:
        slackline.torch.load(step.parameters, {name: state[name] for name in step.parameters})


def work(job: slackline.Job, module: nn.Module, given: argparse.Namespace) -> None:
    device, number = device_of(job), job.rank - job.servers
    module.to(device)
    with job.worker() as worker:
        training = slackline.torch.Worker(module, worker)
        while worker.clock < given.steps:
            x, y = examples(1 + worker.clock * job.workers + number, 32, device)

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                loss = nn.functional.mse_loss(module(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            training.step(closure, timeout=60)
            if number == 0 and worker.clock % given.every == 0:
                print(f"step {worker.clock}: loss {evaluate(module, device):.4f}", flush=True)
                save(module, given.save)
        if number == 0:
            bring_newest(worker, module)
            save(module, given.save)
            print(f"in the end: loss {evaluate(module, device):.4f}", flush=True)
        worker.finish(timeout=60)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--steps", type=int, default=400, help="of each worker")
    arguments.add_argument("--every", type=int, default=100, help="steps from one evaluation to the next")
    arguments.add_argument("--save", type=Path, default=Path("model.pt"))
    arguments.add_argument("--resume", action="store_true", help="begin with what was saved, if there is a file")
    given = arguments.parse_args()
    module = model()
    if given.resume and given.save.exists():
        module.load_state_dict(torch.load(given.save, map_location="cpu", weights_only=True))
    job = slackline.Job.from_env(timeout=120)
    if job.role == "server":
        serve(job, module, given)
    else:
        work(job, module, given)


if __name__ == "__main__":
    main()
