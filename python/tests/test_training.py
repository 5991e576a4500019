"""Servers, workers and jobs: the parameters are what arithmetic says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import free_port

import slackline

Start = Callable[..., Any]


def test_workers_train_the_parameters_that_arithmetic_gives(transport: str, python: Start) -> None:
    initial = {"w": np.full((4, 3), 1.0, "float32"), "b": np.zeros(2, "float32")}
    with slackline.Server(initial, scheme="bsp", workers=2, learning_rate=0.5, transport=transport) as server:
        children = [
            python(
                """
                with slackline.Worker([address], rank=rank) as worker:
                    for clock in range(3):
                        with worker.step() as step:
                            assert (step.clock, step.staleness) == (clock, 0)
                            step.gradient["w"][...] = step.parameters["w"].numpy()
                            step.gradient["b"][...] = rank
                            step.publish(loss=1.0 + rank)
                    worker.flush()
                    print(worker.clock)
                """,
                address=server.address,
                rank=rank,
            )
            for rank in range(2)
        ]
        assert [child.stdout.readline() for child in children] == ["3\n", "3\n"]
        server.wait(left=2)
        parameters = server.parameters()
        # Each step halves w, and takes half of the mean gradient, 0.5, off b.
        assert (parameters["w"].numpy() == 0.5**3).all() and (parameters["b"].numpy() == -0.75).all()
        status = server.status
        assert (parameters.version, status.version, status.smallest_clock) == (3, 3, 3)
        assert (status.folded, status.dropped, status.joined, status.left) == (6, 0, 2, 2)
        assert status.loss == 1.5
        with slackline.Reader(server.address) as reader:
            assert (reader.pull()["w"].numpy() == 0.125).all()


def test_a_step_that_is_left_without_publish_is_begun_again() -> None:
    with slackline.Server({"w": np.ones(8, "float32")}, learning_rate=1.0) as server:
        with slackline.Worker([server.address]) as worker:
            with worker.step() as step:
                view = step.gradient["w"]
                view[...] = 99
                with pytest.raises(slackline.OutOfTurn):
                    worker.step()
            looks: list[Callable[[], Any]] = [view.numpy, lambda: step.parameters["w"], step.publish]
            for look in looks:
                with pytest.raises(slackline.OutOfTurn):
                    look()
            abandoned = worker.step()
            assert abandoned.clock == 0
            del abandoned
            with pytest.raises(ZeroDivisionError):
                with worker.step():
                    1 / 0
            with worker.step() as step:
                assert step.clock == 0 and not step.should_stop
                assert not step.parameters["w"].numpy().flags.writeable
                step.gradient["w"][...] = 1
                step.publish()
            worker.flush()
            assert (server.parameters()["w"].numpy() == 0).all()


def test_the_optimisers_are_those_of_their_names() -> None:
    # One step of Adam moves each parameter by the learning rate, whatever the gradient.
    cases: tuple[tuple[dict[str, Any], float], ...] = (
        ({"optimizer": "adam"}, 1 - 0.1),
        ({"momentum": 0.9, "weight_decay": 1.0}, 1 - 0.1 * (5 + 1)),
        ({"optimizer": "adamw", "weight_decay": 0.5}, (1 - 0.1 * 0.5) - 0.1),
    )
    for options, expected in cases:
        with slackline.Server({"w": np.ones(4, "float32")}, learning_rate=0.1, **options) as server:
            with slackline.Worker([server.address]) as worker:
                with worker.step() as step:
                    step.gradient["w"][...] = 5
                    step.publish()
                worker.flush()
            np.testing.assert_allclose(server.parameters()["w"].numpy(), expected, rtol=1e-6)


def test_servers_say_what_they_cannot_be() -> None:
    ones = {"w": np.ones(4, "float32")}
    wrong: list[dict[str, Any]] = [
        {"scheme": "nonsense"},
        {"scheme": "ssp(x)"},
        {"optimizer": "nonsense"},
        {"workers": 0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"optimizer": "adam", "momentum": 0.9},
        {"optimizer": "adamw", "momentum": 0.9},
        {"weight_decay": -0.1},
    ]
    for options in wrong:
        with pytest.raises(slackline.BadOption):
            slackline.Server(ones, **options)
    with pytest.raises(slackline.LayoutMismatch):
        slackline.Server({"w": np.ones(4, "float16")})


JOB = """
import numpy, slackline, sys, time
job = slackline.Job.from_env(timeout=30, per_host=sys.argv[1] == "per_host")
assert (job.servers, job.workers, job.world_size) == (1, 2, 3)
assert job.local_rank == (job.rank if job.role == "worker" else None)
if job.role == "server":
    parameters, status = job.serve({"w": numpy.full(6, 8.0, "float32")}, scheme="bsp", learning_rate=0.5)
    print(parameters.version, status.joined, status.folded, parameters["w"].numpy().tolist())
else:
    with job.worker() as worker:
        for _ in range(3):
            with worker.step() as step:
                step.gradient["w"][...] = step.parameters["w"].numpy()
                step.publish()
        worker.flush()
        if job.rank == 1:
            try:
                worker.finish(timeout=0.1)
            except slackline.DeadlineError as error:
                assert "within 100ms: the other processes of the job have not finished; " in str(error), error
            # Long enough for the job to end, and for the server to leave.
            time.sleep(2.5)
        else:
            time.sleep(1)
        worker.finish()
    print("worker", job.rank)
"""


def test_a_job_of_three_processes_finds_itself_by_its_environment() -> None:
    # Each of three updates folds the gradients of two workers, and halves 8.
    assert run_job("each") == ["3 2 6 [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]\n", "worker 1\n", "worker 2\n"]


def test_the_workers_of_one_host_reach_the_server_as_one_sum() -> None:
    # One proxy joins for both workers, and each of its sums has two gradients.
    assert run_job("per_host") == ["3 1 6 [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]\n", "worker 1\n", "worker 2\n"]


def run_job(way: str) -> list[str]:
    port, ranks = free_port(), []
    for rank in range(3):
        given = {"SLACKLINE_RANK": str(rank), "SLACKLINE_WORLD_SIZE": "3", "SLACKLINE_RENDEZVOUS": f"127.0.0.1:{port}"}
        if rank > 0:
            given["SLACKLINE_LOCAL_RANK"] = str(rank)
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", JOB, way], env={**os.environ, **given}, stdout=subprocess.PIPE, text=True
            )
        )
    return [process.communicate(timeout=60)[0] for process in ranks]


def test_a_process_without_a_launcher_is_in_no_job(python: Start) -> None:
    child = python(
        """
        try:
            slackline.Job.from_env()
        except slackline.OutOfTurn as error:
            print(error.operation)
        """
    )
    assert child.stdout.readline() == "reading the environment\n"


@pytest.mark.parametrize(
    ("rank", "world", "rendezvous", "options", "error"),
    [
        ("pigeon", 2, "127.0.0.1:{port}", {}, slackline.BadOption),
        ("1", 2, "127.0.0.1:{port}", {"timeout": 0.2}, slackline.DeadlineError),
        ("0", 2, "0.0.0.0:{port}", {}, slackline.Refused),
        ("0", 1, "127.0.0.1:{port}", {"servers": 0}, slackline.BadOption),
    ],
)
def test_a_job_that_cannot_be_says_by_its_class_why(
    rank: str,
    world: int,
    rendezvous: str,
    options: dict[str, Any],
    error: type[slackline.Error],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLACKLINE_SECRET", "SLACKLINE_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    given = {"RANK": rank, "WORLD_SIZE": str(world), "RENDEZVOUS": rendezvous.format(port=free_port())}
    for name, value in given.items():
        monkeypatch.setenv(f"SLACKLINE_{name}", value)
    with pytest.raises(error) as caught:
        slackline.Job.from_env(**options).worker()
    assert type(caught.value) is error


@pytest.mark.parametrize("setting", ['scheme="pigeon"', 'idle="pigeon"', 'learning_rate=float("nan")'])
def test_a_server_that_cannot_be_made_fails_its_job(setting: str, python: Start) -> None:
    code = """
        os.environ |= {"SLACKLINE_RANK": rank, "SLACKLINE_WORLD_SIZE": "2", "SLACKLINE_RENDEZVOUS": rendezvous}
        job = slackline.Job.from_env(timeout=30)
        try:
            if job.role == "server":
                job.serve({"w": np.zeros(6, "float32")}, SETTING)
            else:
                job.worker()
        except slackline.Error as error:
            print(type(error).__name__, "pigeon" in str(error) or "learning_rate" in str(error))
        """.replace("SETTING", setting)
    rendezvous = f"127.0.0.1:{free_port()}"
    ranks = [python(code, rank=str(rank), rendezvous=rendezvous) for rank in range(2)]
    told = [child.stdout.readline() for child in ranks]
    assert told == ["BadOption True\n", "JobFailed True\n"]
