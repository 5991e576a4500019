"""A job of one server and its workers, which finds its ranks by whatever launcher has started it.

The workers fit a line through points by least squares. Rank 0 is the server, and prints what came out.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import slackline

TRUE = np.array([1.0, -2.0, 3.0], "float32")


def work(worker: slackline.Worker, rank: int, steps: int, pause: float) -> None:
    """Goes on at the clock that this rank has come to, also if its process is started again."""
    while worker.clock < steps:
        points = np.random.default_rng([rank, worker.clock]).normal(size=(32, 3)).astype("float32")
        with worker.step(timeout=60) as step:
            errors = points @ (step.parameters["line"].numpy() - TRUE)
            step.gradient["line"][...] = points.T @ errors / len(points)
            step.publish(loss=float((errors**2).mean()))
        time.sleep(pause)
    worker.finish(timeout=60)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    given = arguments.parse_args()
    job = slackline.Job.from_env(timeout=120)
    if job.role == "server":
        parameters, status = job.serve({"line": np.zeros(3, "float32")}, scheme="bsp", learning_rate=0.2)
        line = [round(value, 3) for value in parameters["line"].numpy().tolist()]
        print(f"{job.workers} workers, {status.folded} gradients, line {line}", flush=True)
    else:
        with job.worker() as worker:
            work(worker, job.rank, given.steps, given.pause)


if __name__ == "__main__":
    main()
