"""A small transformer learns the next character of a text, by several workers and by one process alone.

    python transformer.py --workers 2 --steps 100

The text is the help on the Python language that comes with the standard library (`pydoc_data.topics`). Each batch is
split among the workers, and the server takes the mean of their gradients (BSP): so it is the same computation as plain
SGD in one process, but for the order of the sums. The program trains both ways and prints by how much the parameters
differ in the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

import slackline
import slackline.torch

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 12, 32, 32, 4, 2
LEARNING_RATE = 0.1


class Transformer(nn.Module):
    """Reads characters from the left to the right, and says what comes after each."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.layers(self.characters(text) + self.positions, mask=self.mask, is_causal=True)
        result: Tensor = self.out(hidden)
        return result


def corpus() -> tuple[Tensor, int]:
    """The text as numbers of its characters, and how many characters there are."""
    text = "".join(topics[name] for name in sorted(topics))
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


def model(characters: int) -> Transformer:
    torch.manual_seed(0)
    return Transformer(characters)


def loss_of(module: Transformer, text: Tensor, step: int, part: slice) -> Tensor:
    """The mean loss of a part of the batch of a step."""
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=draw)[part]
    windows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
    return nn.functional.cross_entropy(module(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def work(address: str, rank: int, workers: int, steps: int) -> None:
    """What each worker's process does."""
    torch.set_num_threads(1)
    text, characters = corpus()
    module = model(characters)
    share = BATCH // workers
    with slackline.Worker([address], rank=rank) as worker:
        training = slackline.torch.Worker(module, worker)
        for step in range(steps):

            def closure(step: int = step) -> Tensor:
                loss = loss_of(module, text, step, slice(rank * share, (rank + 1) * share))
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            training.step(closure, timeout=120)
        worker.flush()


def train_by_workers(workers: int, steps: int) -> dict[str, Tensor]:
    """The parameters after so many steps of so many processes."""
    _, characters = corpus()
    initial = slackline.torch.parameters(model(characters))
    context = multiprocessing.get_context("spawn")
    with slackline.Server(initial, scheme="bsp", workers=workers, learning_rate=LEARNING_RATE) as server:
        processes = [
            context.Process(target=work, args=(server.address, rank, workers, steps), daemon=True)
            for rank in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode != 0:
                raise RuntimeError(f"a worker has ended with {process.exitcode}")
        state = slackline.torch.state_dict(server.parameters())
        return {name: tensor.clone() for name, tensor in state.items()}


def train_alone(steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """The parameters after so many steps of plain SGD on whole batches, and the loss of each."""
    text, characters = corpus()
    module = model(characters)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module, text, step, slice(None))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return slackline.torch.parameters(module), losses


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The most by which an element differs."""
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--workers", type=int, default=2, choices=[1, 2, 3, 4, 6, 12])
    arguments.add_argument("--steps", type=int, default=100)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    alone, losses = train_alone(given.steps)
    print(f"loss {losses[0]:.3f} at first, {sum(losses[-10:]) / len(losses[-10:]):.3f} in the last ten steps")
    together = train_by_workers(given.workers, given.steps)
    elements = sum(tensor.numel() for tensor in alone.values())
    print(f"{elements} parameters after {given.steps} steps differ by {difference(alone, together):.1e} at most")


if __name__ == "__main__":
    main()
