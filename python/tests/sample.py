"""A program that uses every class, for mypy: it is checked, and not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_type

import slackline


def publish(weights: Mapping[str, memoryview]) -> int:
    table = [slackline.TensorSpec("weight", "float32", (10, 64))]
    with slackline.Publisher(table, address="@sample", frames=4, secret=b"secret") as publisher:
        assert_type(publisher.publish(weights), int)
        with publisher.frame(timeout=1.0) as frame:
            frame["weight"][...] = 1
            assert_type(frame["weight"], slackline.ArrayView)
        assert_type(frame.version, int | None)
        assert_type(frame.publication, str | None)
        assert_type(publisher.publish_recorded(weights, step=1), str)
        return publisher.version


def serve(weights: Mapping[str, memoryview], name: str) -> bytes:
    with slackline.Tables(address="127.0.0.1:0", secret=b"secret") as tables:
        with tables.publisher(name, weights, deltas=8, delta_bytes=1 << 20, checksums=True) as publisher:
            assert_type(publisher, slackline.Publisher)
            assert_type(tables.names, list[str])
        with slackline.Relay(tables.address, table=name, deltas=8) as relay:
            assert_type(relay.version, int)
    return slackline.reading_secret(b"secret")


def read(address: str) -> float:
    with slackline.Reader(address, table="adapter", checksums=True, idle="sleep", timeout=1) as reader:
        names: list[str] = [spec.name for spec in reader.metadata]
        snapshot = reader.pull(max_staleness=2, min_version=1)
        assert_type(snapshot, slackline.Snapshot)
        assert_type(snapshot.age, float | None)
        into = {name: bytearray(8) for name in names}
        reader.pull(into)
        with reader.pin() as pinned:
            assert_type(pinned, slackline.Snapshot)
            first: object = pinned[names[0]].numpy()
            del first
        verdict = slackline.check([snapshot.certificate()], clock_error=0.001)
        for violation in verdict.violations:
            assert_type((violation.line, violation.against), tuple[int, int | None])
            assert_type(violation.property, str)
        reader.prefetch()
        for name, view in reader.swap().items():
            assert_type(name, str)
            assert_type(view.shape, tuple[int, ...])
            assert_type(memoryview(view).nbytes, int)
        return snapshot.staleness


def train(initial: Mapping[str, memoryview]) -> slackline.ServerStatus:
    with slackline.Server(initial, scheme="ssp(2)", workers=1, optimizer="adam") as server:
        with slackline.Worker([server.address], rank=0) as worker:
            with worker.step() as step:
                step.gradient["weight"][...] = step.parameters["weight"].numpy()
                step.publish(0.5, timeout=1)
            worker.flush()
        server.wait(left=1)
        return server.status


def join() -> None:
    job = slackline.Job.from_env(servers=1)
    try:
        job.worker().finish()
    except slackline.Error as error:
        assert_type(error.remedy, str | None)
        if not error.is_retryable:
            raise
