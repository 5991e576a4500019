"""Weights from rank 0 to all others under MPI, with mpi4py: mpiexec -n 4 python mpi.py

MPI starts the processes and hands the address over; the weights go by slackline, so that no rank waits for another.
On several hosts give the publisher an `address` such as "HOST:0" and all ranks the same SLACKLINE_SECRET_FILE.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import slackline

VERSIONS, SHAPE = 20, (64, 64)


def main() -> None:
    world = MPI.COMM_WORLD
    table = [slackline.TensorSpec("weight", "float32", SHAPE)]
    publisher = slackline.Publisher(table, transport="tcp", readers=world.size) if world.rank == 0 else None
    address = world.bcast(publisher.address if publisher else None)
    trace: list[str] = []
    if publisher:
        for step in range(1, VERSIONS + 1):
            weights = {"weight": np.full(SHAPE, step, "float32")}
            trace.append(publisher.publish_recorded(weights, step=step))
            publisher.wait(step, readers=world.size - 1)  # a trainer would go on: here each reader shall see each
    else:
        with slackline.Reader(address) as reader:
            version = 0
            while version < VERSIONS:
                snapshot = reader.pull(min_version=version + 1)
                assert (snapshot["weight"].numpy() == snapshot.step).all()
                version = snapshot.version
                trace.append(snapshot.certificate())
    # The publisher stays until all have read the last version.
    traces = world.gather(trace)
    if traces is not None:
        verdict = slackline.check(line for part in traces for line in part)
        print(f"{world.size - 1} readers, {verdict.verified} of {verdict.reads} reads verified", flush=True)


if __name__ == "__main__":
    main()
