"""The manifests of Kubernetes with pods that are namespaces: each has an address, a host name and files of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pods
import pytest

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed: `cargo xtask wheel --integrations` installs it")

RECIPES = Path(__file__).parents[2] / "examples" / "launchers"


def job_of(name: str) -> tuple[dict[str, Any], str]:
    """The specification of the Job of a manifest, and what the names of its pods begin with."""
    last = list(yaml.safe_load_all((RECIPES / name).read_text()))[-1]
    if last["kind"] == "Job":
        return last["spec"], f"{last['metadata']['name']}-"
    (ranks,) = last["spec"]["replicatedJobs"]
    return ranks["template"]["spec"], f"{last['metadata']['name']}-{ranks['name']}-0-"


@pytest.mark.parametrize("name", ["indexed-job.yaml", "jobset.yaml"])
def test_pods_with_addresses_of_their_own_train_on_after_restarts(name: str, tmp_path: Path) -> None:
    if reason := pods.obstacle():
        pytest.skip(reason)
    spec, prefix = job_of(name)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python", "job.py"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    service = given["SLACKLINE_RENDEZVOUS"].partition(":")[0].partition(".")[2]
    (secret,) = spec["template"]["spec"]["volumes"]
    assert secret["secret"]["defaultMode"] == 0o400
    (key, names) = (tmp_path / "key", tmp_path / "names")
    key.write_text("0123456789abcdef0123456789abcdef")

    def tell_names(addresses: dict[int, str]) -> None:
        lines = [f"{address} {prefix}{index}.{service} {prefix}{index}" for index, address in addresses.items()]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    command = [sys.executable, str(RECIPES / "job.py"), "--steps", "150", "--pause", "0.05"]
    addresses = {index: f"10.77.0.{10 + index}" for index in range(3)}
    tell_names(addresses)
    with pods.Cluster(names) as cluster:

        def pod(index: int) -> pods.Pod:
            made = cluster.pod(f"{prefix}{index}", addresses[index])
            made.mount(key, given["SLACKLINE_SECRET_FILE"])
            return made

        def start(index: int) -> Any:
            return cluster_pods[index].start(command, {**given, "JOB_COMPLETION_INDEX": str(index)})

        cluster_pods = [pod(index) for index in range(3)]
        ranks = [start(index) for index in range(3)]
        time.sleep(2.0)
        # The container of a pod fails, and is started again in the same pod: restartPolicy is OnFailure.
        ranks[2].kill()
        ranks[2].wait()
        assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"
        ranks[2] = start(2)
        time.sleep(2.0)
        assert ranks[1].poll() is None
        # The host of a pod is lost without a word, and the Job makes another pod, which has another address.
        cluster_pods[1].vanish()
        assert [rank.poll() for rank in (ranks[0], ranks[2])] == [None, None]
        addresses[1] = "10.77.0.21"
        tell_names(addresses)
        cluster_pods[1] = pod(1)
        ranks[1] = start(1)
        assert [rank.wait(120) for rank in ranks] == [0, 0, 0]
        printed = ranks[0].stdout.read()
        assert "2 workers" in printed and "line [1.0, -2.0, 3.0]" in printed
