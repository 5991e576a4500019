"""Weights from a trainer to rollout actors on the nodes of a Ray cluster: one copy for each node, by a relay.

    python ray_cluster.py             # a cluster of three nodes on this host
    python ray_cluster.py ADDRESS     # one that is running, with a resource "rollouts" on its nodes for the actors
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

import numpy as np
import ray as typed_ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import slackline

ray: Any = typed_ray  # its types do not know actors of classes that are passed to it

SHAPE, VERSIONS, READERS = (256, 256), 10, 2


class Trainer:
    """Publishes."""

    def __init__(self, secret: bytes) -> None:
        table = [slackline.TensorSpec("weight", "float32", SHAPE)]
        address = f"{ray.util.get_node_ip_address()}:0"
        self.publisher = slackline.Publisher(table, address=address, secret=secret)

    def address(self) -> str:
        return self.publisher.address

    def publish(self, step: int) -> str:
        return self.publisher.publish_recorded({"weight": np.full(SHAPE, step, "float32")}, step=step)


class NodeRelay:
    """Reads each version once for its node, and serves it by shared memory."""

    def __init__(self, upstream: str, secret: bytes) -> None:
        self.relay = slackline.Relay(upstream, transport="shm", secret=secret)

    def address(self) -> str:
        return self.relay.address


class Rollout:
    """Acts by weights in place, and keeps the certificates of its samples."""

    def __init__(self, relay: str) -> None:
        self.reader = slackline.Reader(relay)

    def act(self, version: int) -> tuple[float, str]:
        with self.reader.pin(min_version=version, max_staleness=1) as weights:
            return float(weights["weight"].numpy().mean()), weights.certificate()


def run() -> slackline.Verdict:
    """Versions from a trainer to the actors of all nodes."""
    secret = secrets.token_hex(32).encode()
    trainer: Any = ray.remote(num_cpus=0)(Trainer).remote(secret)
    address = ray.get(trainer.address.remote())
    nodes = [node["NodeID"] for node in ray.nodes() if node["Resources"].get("rollouts")]
    relays, rollouts = [], []  # an actor lives for as long as its handle
    for node in nodes:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        here: Any = ray.remote(num_cpus=0, resources={"rollouts": 1}, scheduling_strategy=where)
        relays.append(here(NodeRelay).remote(address, secret))
        served = ray.get(relays[-1].address.remote())
        rollouts += [here(Rollout).remote(served) for _ in range(READERS)]
    trace = []
    for step in range(1, VERSIONS + 1):
        trace.append(ray.get(trainer.publish.remote(step)))
        for mean, certificate in ray.get([rollout.act.remote(step) for rollout in rollouts]):
            assert mean == step
            trace.append(certificate)
    print(f"{len(nodes)} nodes, {len(rollouts)} rollout actors")
    return slackline.check(trace)


def main() -> None:
    cluster: Any = None
    if len(sys.argv) == 1:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        for _ in range(2):
            cluster.add_node(num_cpus=1, resources={"rollouts": 8})
    ray.init(cluster.address if cluster else sys.argv[1])
    verdict = run()
    print(f"{verdict.verified} of {verdict.reads} reads verified")
    ray.shutdown()
    if cluster:
        cluster.shutdown()


if __name__ == "__main__":
    main()
