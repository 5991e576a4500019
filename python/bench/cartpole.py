"""Asynchronous actor-critic on CartPole: rollout processes read the weights while the trainer publishes.

    python cartpole.py --seconds 20 --runs 5 --out cartpole.json --plot cartpole.svg

Four rollout processes act by the newest weights that they have pulled, which may be at most so many versions behind the
newest: 0, 1, 2, 4 or 8, or in a mixture another bound for each process. The trainer takes what they have played as it
comes, updates the weights and publishes them, some hundred versions a second. Nothing corrects for the age of the
weights that a sample comes from, so that its price is seen. Every sample has the certificate of the read that it was
played with; the certificates and the trainer's publications are judged after each run. Needs gymnasium and numpy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import gymnasium
import machine
import numpy as np
import plot

import slackline

BOUNDS: dict[str, list[int]] = {
    **{str(bound): [bound] * 4 for bound in (0, 1, 2, 4, 8)},
    "mixture": [0, 2, 4, 8],
}
HIDDEN, SEGMENT, BATCH = 64, 32, 8
GAMMA, LAMBDA, ENTROPY, RATE = 0.99, 0.95, 0.01, 2e-3

Array = np.ndarray[Any, np.dtype[np.float32]]
Weights = dict[str, Array]


def weights(seed: int) -> Weights:
    """An actor and a critic with one hidden layer each."""
    draw = np.random.default_rng(seed)
    made: Weights = {}
    for net, outputs, scale in (("actor", 2, 0.01), ("critic", 1, 1.0)):
        made[f"{net}.in"] = draw.normal(0, 0.5, (4, HIDDEN)).astype("float32")
        made[f"{net}.bias"] = np.zeros(HIDDEN, "float32")
        made[f"{net}.out"] = draw.normal(0, scale / HIDDEN**0.5, (HIDDEN, outputs)).astype("float32")
    return made


def forward(given: Weights, net: str, states: Array) -> tuple[Array, Array]:
    """The hidden layer and the outputs."""
    hidden = np.tanh(states @ given[f"{net}.in"] + given[f"{net}.bias"])
    return hidden, hidden @ given[f"{net}.out"]


def backward(given: Weights, net: str, states: Array, hidden: Array, outer: Array) -> Weights:
    """The gradient, given that of the outputs."""
    inner = (outer @ given[f"{net}.out"].T) * (1 - hidden**2)
    return {f"{net}.in": states.T @ inner, f"{net}.bias": inner.sum(0), f"{net}.out": hidden.T @ outer}


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return cast(Array, powers / powers.sum(-1, keepdims=True))


@dataclass
class Segment:
    """What one process has played with one version of the weights."""

    certificate: str
    version: int
    staleness: int
    states: Array
    nexts: Array
    actions: np.ndarray[Any, Any]
    terminated: Array
    cut: Array
    returns: list[float]


def roll_out(address: str, bound: int, seed: int, pipe: Connection) -> None:
    """What each rollout process does, until the trainer is gone."""
    environment = gymnasium.make("CartPole-v1")
    draw = np.random.default_rng(seed)
    state, _ = environment.reset(seed=seed)
    reader = slackline.Reader(address)
    total, is_awaited = 0.0, False
    pipe.send("ready")
    pipe.recv()
    while True:
        snapshot = reader.pull(max_staleness=bound)
        acting = {name: view.numpy() for name, view in snapshot.items()}
        played = Segment(snapshot.certificate(), snapshot.version, snapshot.staleness, *_empty(), [])
        for index in range(SEGMENT):
            chances = softmax(forward(acting, "actor", state)[1])
            action = int(draw.random() < chances[1])
            played.states[index], played.actions[index] = state, action
            state, reward, terminated, truncated, _ = environment.step(action)
            total += float(reward)
            played.nexts[index], played.terminated[index] = state, terminated
            played.cut[index] = terminated or truncated
            if terminated or truncated:
                played.returns.append(total)
                state, _ = environment.reset()
                total = 0.0
        # One segment waits for the trainer at most: its age there would be no matter of reads.
        try:
            if is_awaited:
                pipe.recv()
            pipe.send(played)
        except (EOFError, ConnectionError):
            return
        is_awaited = True


def _empty() -> tuple[Array, Array, np.ndarray[Any, Any], Array, Array]:
    states, flags = (SEGMENT, 4), SEGMENT
    return (
        np.zeros(states, "float32"),
        np.zeros(states, "float32"),
        np.zeros(flags, "int64"),
        np.zeros(flags, "float32"),
        np.zeros(flags, "float32"),
    )


@dataclass
class Trainer:
    """Adam on the gradient of the actor and the critic."""

    given: Weights
    step: int = 0
    first: Weights = field(default_factory=dict)
    second: Weights = field(default_factory=dict)

    def update(self, segments: list[Segment]) -> None:
        advantages = np.concatenate([self._advantages(played) for played in segments])
        states = np.concatenate([played.states for played in segments])
        actions = np.concatenate([played.actions for played in segments])
        hidden, values = forward(self.given, "critic", states)
        # The target of the critic is its value and the advantage.
        outer = (-advantages[:, None] / len(states)).astype("float32")
        gradient = backward(self.given, "critic", states, hidden, outer)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        hidden, logits = forward(self.given, "actor", states)
        chances = softmax(logits)
        logs = np.log(chances + 1e-9)
        chosen = np.eye(2, dtype="float32")[actions]
        entropies = -(chances * logs).sum(1, keepdims=True)
        outer = scaled[:, None] * (chances - chosen) + ENTROPY * chances * (logs + entropies)
        gradient |= backward(self.given, "actor", states, hidden, (outer / len(states)).astype("float32"))
        self.step += 1
        for name, slope in gradient.items():
            first = self.first[name] = 0.9 * self.first.get(name, 0) + 0.1 * slope
            second = self.second[name] = 0.999 * self.second.get(name, 0) + 0.001 * slope**2
            first, second = first / (1 - 0.9**self.step), second / (1 - 0.999**self.step)
            self.given[name] = (self.given[name] - RATE * first / (np.sqrt(second) + 1e-8)).astype("float32")

    def _advantages(self, played: Segment) -> Array:
        """Generalised advantage estimation. An episode that the time limit has cut is worth what the critic says."""
        values = forward(self.given, "critic", played.states)[1][:, 0]
        nexts = forward(self.given, "critic", played.nexts)[1][:, 0]
        errors = 1 + GAMMA * nexts * (1 - played.terminated) - values
        advantages, last = np.zeros(SEGMENT, "float32"), 0.0
        for index in reversed(range(SEGMENT)):
            last = float(errors[index]) + GAMMA * LAMBDA * (1 - float(played.cut[index])) * last
            advantages[index] = last
        return advantages


def run(name: str, seed: int, seconds: float, trace_path: str | None) -> dict[str, Any]:
    """One run: its returns by the second of their end, and the verdict on its trace."""
    bounds, context = BOUNDS[name], multiprocessing.get_context("spawn")
    trainer, trace = Trainer(weights(seed)), []
    returns: list[list[float]] = [[] for _ in range(int(seconds))]
    ages: deque[tuple[int, int]] = deque()
    with slackline.Publisher(trainer.given, frames=len(bounds) + 2) as publisher:
        trace.append(publisher.publish_recorded(trainer.given))
        pipes, processes = [], []
        for rank, bound in enumerate(bounds):
            here, there = context.Pipe()
            arguments = (publisher.address, bound, 1000 * seed + rank, there)
            processes.append(context.Process(target=roll_out, args=arguments, daemon=True))
            processes[-1].start()
            there.close()
            pipes.append(here)
        for pipe in pipes:
            assert pipe.recv() == "ready"
        begun = time.monotonic()
        for pipe in pipes:
            pipe.send("go")
        batch: list[Segment] = []
        while (now := time.monotonic() - begun) < seconds:
            for pipe in cast("list[Connection]", wait(pipes, timeout=1.0)):
                played = pipe.recv()
                pipe.send("next")
                trace.append(played.certificate)
                ages.append((played.staleness, publisher.version - played.version))
                returns[min(int(now), len(returns) - 1)].extend(played.returns)
                batch.append(played)
                if len(batch) == BATCH:
                    trainer.update(batch)
                    trace.append(publisher.publish_recorded(trainer.given, step=trainer.step))
                    batch = []
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            process.kill()
    if trace_path is not None:
        with open(f"{trace_path}-{name}-{seed}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in trace)
    verdict = slackline.check(trace)
    return {
        "bound": name,
        "seed": seed,
        "returns": [round(float(np.mean(of)), 1) if of else None for of in returns],
        "updates": trainer.step,
        "samples": len(ages) * SEGMENT,
        "staleness_at_read": round(float(np.mean([read for read, _ in ages])), 2),
        "age_at_use": round(float(np.mean([use for _, use in ages])), 2),
        "most_stale_at_read": max(read for read, _ in ages),
        "reads": verdict.reads,
        "verified": verdict.verified,
        "violations": [violation.found for violation in verdict.violations],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--bounds", nargs="+", default=list(BOUNDS), choices=list(BOUNDS))
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=20)
    arguments.add_argument("--trace", help="write the trace of each run to this path with -BOUND-SEED.jsonl behind it")
    arguments.add_argument("--out", help="write the record to this file")
    arguments.add_argument("--plot", help="write the plot to this file")
    given = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the rollout processes; matrices are small
    record = machine.record("cartpole", ["gymnasium", "numpy", "slackline"])
    # One run of each bound after the other, so that what else the machine does meets them all.
    record["runs"] = []
    for seed in range(given.runs):
        for name in given.bounds:
            record["runs"].append(run(name, seed, given.seconds, given.trace))
            print(json.dumps({key: value for key, value in record["runs"][-1].items() if key != "returns"}), flush=True)
    machine.finish(record)
    if given.out:
        machine.write(record, given.out)
    curves = {name: [one["returns"] for one in record["runs"] if one["bound"] == name] for name in given.bounds}
    if given.plot:
        plot.write(given.plot, curves)
    print(plot.table(curves))
    if any(one["violations"] or one["verified"] != one["reads"] for one in record["runs"]):
        raise SystemExit("a trace has violations, or reads that could not be verified")


if __name__ == "__main__":
    main()
