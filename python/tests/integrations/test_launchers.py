"""The launchers' recipes as they stand: torchrun, MPI and Ray are run, Slurm and Kubernetes are imitated."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import free_port

pytest.importorskip("mpi4py", reason="mpi4py is not installed: `cargo xtask wheel --integrations` installs it")

RECIPES = Path(__file__).parents[2] / "examples" / "launchers"
BIN = Path(sys.executable).parent
FITTED = "2 workers, 200 gradients, line [1.0, -2.0, 3.0]"


def run(*command: str | Path, **environment: str) -> str:
    """What a recipe prints, with the programs of this environment."""
    given = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHON": sys.executable, **environment}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torchrun_starts_a_job() -> None:
    assert FITTED in run(RECIPES / "torchrun.sh")


def test_torchrun_trains_a_module_and_goes_on_from_what_it_has_saved(tmp_path: Path) -> None:
    saved = tmp_path / "model.pt"
    command = ("torchrun", "--nproc-per-node", "3", RECIPES / "torch_job.py", "--resume", "--save", saved)
    loss = re.compile(r"^in the end: loss (\S+)$", re.MULTILINE)
    trained = run(*command, "--steps", "200")
    (first,) = loss.findall(trained)
    assert "step 100: loss" in trained and "2 workers, 400 gradients" in trained and float(first) < 0.01
    # From the initial values one step does not get there.
    longer = run(*command, "--steps", "1")
    (second,) = loss.findall(longer)
    assert "2 workers, 2 gradients" in longer and float(second) < 0.03


def test_the_parts_on_the_page_of_torch_are_those_of_the_program() -> None:
    page = (Path(__file__).parents[3] / "docs" / "torch.md").read_text(encoding="utf-8")
    (parts,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert parts in (RECIPES / "torch_job.py").read_text(encoding="utf-8")


def test_mpi_hands_the_address_of_a_publisher_over() -> None:
    printed = run(BIN / "mpiexec", "-n", "4", sys.executable, RECIPES / "mpi.py")
    assert printed == "3 readers, 60 of 60 reads verified\n"


def test_mpi_starts_a_job() -> None:
    assert FITTED in run(BIN / "mpiexec", "-n", "3", sys.executable, RECIPES / "job.py")


def test_ray_actors_on_three_nodes_read_by_one_relay_a_node() -> None:
    printed = run(sys.executable, RECIPES / "ray_cluster.py")
    assert "2 nodes, 4 rollout actors\n40 of 40 reads verified\n" in printed


# What srun of Slurm 22.05 gives each of the tasks of a step on one node, by docs/launchers.md.
SRUN = """#!/bin/bash
export SLURM_JOB_ID=$SLURM_JOB_ID SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=3
export SLURM_NODEID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3 SLURM_STEP_NODELIST=localhost
for rank in 0 1 2; do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" &
    started="$started $!"
done
for process in $started; do wait $process || exit 1; done
"""


def test_the_batch_script_makes_its_secret_and_starts_a_job_by_an_imitation_of_srun(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    secret = tmp_path / "secret"
    # Slurm runs a copy of the script, with the variables of the job.
    script = tmp_path / "slurm_script"
    script.write_text((RECIPES / "slurm.sh").read_text())
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_SUBMIT_DIR": str(RECIPES), "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert FITTED in run("bash", script, PATH=path, SLACKLINE_SECRET_FILE=str(secret), **job)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(secret.read_text()) > 40


def manifests(name: str) -> list[dict[str, Any]]:
    import yaml

    return list(yaml.safe_load_all((RECIPES / name).read_text()))


def job_of(name: str) -> dict[str, Any]:
    """The specification of the Job of a manifest."""
    last = manifests(name)[-1]
    if last["kind"] == "Job":
        return dict(last["spec"])
    (ranks,) = last["spec"]["replicatedJobs"]
    return dict(ranks["template"]["spec"])


def test_the_manifests_are_valid_by_their_schemas() -> None:
    import kubernetes_validate
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    def validate(manifest: dict[str, Any]) -> None:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)

    indexed = manifests("indexed-job.yaml")
    for manifest in indexed:
        validate(manifest)
    (jobset,) = manifests("jobset.yaml")
    # The model leaves out what it does not know.
    known = JobsetV1alpha2JobSet.from_dict(jobset)
    assert known is not None and known.to_dict() == jobset
    # And the Job inside of it is one of Kubernetes.
    for ranks in jobset["spec"]["replicatedJobs"]:
        template = {"metadata": {"name": "ranks"}, **ranks["template"]}
        validate({"apiVersion": "batch/v1", "kind": "Job", **template})
    with pytest.raises(kubernetes_validate.ValidationError):
        validate({**indexed[-1], "spec": {**indexed[-1]["spec"], "completion": 3}})


@pytest.mark.parametrize("name", ["indexed-job.yaml", "jobset.yaml"])
def test_pods_of_the_manifest_find_each_other_also_if_one_is_started_again(name: str, tmp_path: Path) -> None:
    spec = job_of(name)
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 3
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(pod["volumes"][0]["secret"]["defaultMode"])
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    host, _, port = given["SLACKLINE_RENDEZVOUS"].partition(":")
    # The names that the service or the JobSet gives to pod 0.
    assert port == "21000" and host in ("slackline-0.slackline", "slackline-ranks-0-0.slackline")
    # All pods are on this host, where their names are not known.
    given |= {"SLACKLINE_RENDEZVOUS": f"127.0.0.1:{free_port()}", "SLACKLINE_SECRET_FILE": str(secret)}
    assert container["command"] == ["python", "job.py"] and pod["restartPolicy"] == "OnFailure"

    def start(index: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(RECIPES / "job.py"), "--steps", "60", "--pause", "0.05"]
        environment = {**os.environ, **given, "JOB_COMPLETION_INDEX": str(index)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    pods = [start(index) for index in range(3)]
    try:
        time.sleep(2.0)
        pods[2].send_signal(signal.SIGKILL)
        pods[2].wait()
        assert pods[0].poll() is None and pods[1].poll() is None
        pods[2] = start(2)
        assert [pod.wait(120) for pod in pods] == [0, 0, 0]
        assert pods[0].stdout is not None and "line [1.0, -2.0, 3.0]" in pods[0].stdout.read()
    finally:
        for process in pods:
            process.kill()
            process.wait()
