"""Pods of Kubernetes imitated on one machine: each has a network, a host name and files of its own.

A cluster is a user namespace, in which this process need not be root, with a bridge as its network. A pod is a process
that only holds namespaces, as the pause container of Kubernetes is, joined to the bridge. What runs in it is started,
killed and started again without a loss of its address.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def obstacle() -> str | None:
    """What keeps this machine from imitating pods."""
    try:
        with Cluster(Path(os.devnull)):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return f"no namespaces here: {error}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)


def _hold(*command: str) -> subprocess.Popen[bytes]:
    """Starts a process that holds namespaces until this one ends, and returns once they are there."""
    command = (*command, "sh", "-c", "echo; exec cat")
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    if holder.stdout.readline() != b"\n":
        raise OSError(f"{command[0]} ended with {holder.wait()}")
    return holder


def _within(holder: subprocess.Popen[bytes], *spaces: str) -> list[str]:
    return ["nsenter", "--preserve-credentials", "-U", *spaces, "-t", str(holder.pid)]


class Pod:
    """The namespaces of one pod."""

    def __init__(self, cluster: Cluster, name: str, address: str) -> None:
        self._cluster = cluster
        self._link = f"veth{address.rpartition('.')[2]}"
        self._pause = _hold(*_within(cluster.node), "unshare", "-nmu")
        self._containers: list[subprocess.Popen[str]] = []
        _run(*_within(cluster.node, "-n"), "ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0",
             "netns", str(self._pause.pid))
        _run(*_within(cluster.node, "-n"), "ip", "link", "set", self._link, "master", "cluster", "up")
        self._within = _within(self._pause, "-n", "-m", "-u")
        inside = f"""
            hostname {name}
            ip link set lo up
            ip address add {address}/24 dev eth0
            ip link set eth0 up
            mount --bind {cluster.names} /etc/hosts
        """
        _run(*self._within, "sh", "-ec", inside)

    def mount(self, source: Path, target: str) -> None:
        """Copies a file to a path that only the pod has, as a secret is mounted: readable by its owner alone."""
        folder, top = target.rpartition("/")[0], "/" + target.split("/")[1]
        # The file is opened first, as the new folder may hide it.
        steps = f"exec 3<{source}; mount -t tmpfs tmpfs {top}; mkdir -p {folder}; cat <&3 >{target}; chmod 400 {target}"
        _run(*self._within, "sh", "-ec", steps)

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        """Starts a container."""
        given = {**os.environ, **environment}
        container = subprocess.Popen([*self._within, *command], env=given, stdout=subprocess.PIPE, text=True)
        self._containers.append(container)
        return container

    def vanish(self) -> None:
        """The host of the pod is gone: its network first, so that no process says farewell."""
        _run(*_within(self._cluster.node, "-n"), "ip", "link", "delete", self._link)
        self.close()

    def close(self) -> None:
        for container in self._containers:
            container.kill()
            container.wait()
        self._pause.kill()
        self._pause.wait()


class Cluster:
    """A network of pods. `names` is the file of the names that all of them know."""

    def __init__(self, names: Path) -> None:
        self.names = names
        self.node = _hold("unshare", "-Urn")
        self._pods: list[Pod] = []
        try:
            _run(*_within(self.node, "-n"), "ip", "link", "add", "cluster", "type", "bridge")
            _run(*_within(self.node, "-n"), "ip", "link", "set", "cluster", "up")
        except BaseException:
            self.close()
            raise

    def pod(self, name: str, address: str) -> Pod:
        pod = Pod(self, name, address)
        self._pods.append(pod)
        return pod

    def close(self) -> None:
        for pod in self._pods:
            pod.close()
        self.node.kill()
        self.node.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
