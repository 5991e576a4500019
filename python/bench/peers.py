"""A table of ways to hand weights from one process to others on one host: delivery, memory, pause, tearing, deaths.

    python peers.py --out peers.json                     # everything that is installed, about half an hour
    python peers.py --only redis iceoryx2 --sizes 1 64   # MiB
    python peers.py --table peers.json                   # the tables of a record
    python peers.py --repeat 'file on tmpfs, overwritten' free 64 2   # one cell: what, MiB and readers

Each cell is a process group of its own with a time limit. `contenders.py` says how each library is used. What is
not installed is left out, and the record says with what error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, cast

import machine
import numpy as np
from contender import PATIENCE, Array, Contender
from contenders import CONTENDERS
from tables import tables

MIB = 1 << 20
VERSIONS, WARM_UP = {1: 40, 64: 8, 1024: 3}, 3
END = 1 << 62
"""The number that ends a free run of collective calls."""
FREE_SECONDS, KILLED_AFTER = 4.0, 1.5
LIMIT, STARTING, AFTERWARDS = 100.0, 60.0, 5.0


def read(contender: Contender, address: Any, rank: int, pipe: Connection) -> None:
    """What a reader's process does: what it is told."""
    contender.connect(address, rank)
    pipe.send("ready")
    array: Array | None = None
    while True:
        try:
            order, value = pipe.recv()
        except EOFError:
            return
        if order == "stage":
            contender.stage(value)
            pipe.send("staged")
        elif order == "receive":
            array = None  # it is in use until the next one is asked for
            begun = time.monotonic()
            array = contender.receive(value)
            taken = time.monotonic() - begun
            if not array[0] == array[-1] >= value:
                raise RuntimeError(f"version {value} was asked for, and {array[0]} to {array[-1]} received")
            pipe.send(taken)
        else:
            array = None
            found = read_freely(contender, value)
            contender.release()
            pipe.send(found)


def read_freely(contender: Contender, seconds: float) -> dict[str, Any]:
    """Receives one version after the other, and looks at every element of each."""
    begun = last = time.monotonic()
    found: dict[str, Any] = {"reads": 0, "torn": 0, "longest_gap": 0.0, "error": None}
    newest = 0
    while contender.is_collective or time.monotonic() - begun < seconds:
        try:
            array = contender.receive(newest + 1)
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"[:200]
            return found
        if array[-1] >= END:
            break
        low, newest = int(array.min()), int(array.max())
        found["reads"] += 1
        found["torn"] += low != newest
        found["longest_gap"] = max(found["longest_gap"], time.monotonic() - last)
        last = time.monotonic()
        del array
    return found


class Cell:
    """The publisher's side of one cell, with its readers."""

    def __init__(self, contender: Contender, pipes: list[Connection], pids: list[int], root: int) -> None:
        self.contender, self.pipes, self.pids, self.root = contender, pipes, pids, root
        # The trainer has its own array, which is no memory of the library's.
        self.array: Array = np.ones(contender.elements, "uint64")
        self.version = 0
        for pipe in pipes:
            self.answer(pipe, STARTING)

    def answer(self, pipe: Connection, patience: float = PATIENCE) -> Any:
        if not pipe.poll(patience):
            raise RuntimeError("a reader does not answer")
        return pipe.recv()

    def publish(self, version: int | None = None) -> float:
        self.version += 1
        self.array.fill(version or self.version)
        begun = time.monotonic()
        self.contender.publish(self.array, self.version)
        return begun

    def tell(self, order: str, value: Any) -> None:
        for pipe in self.pipes:
            pipe.send((order, value))

    def deliver(self) -> dict[str, Any]:
        """Readers wait for each version; and then each version waits for its readers."""
        times: list[float] = []
        pauses: list[float] = []
        for index in range(WARM_UP + VERSIONS.get(self.contender.size // MIB, 3)):
            if index == WARM_UP:
                times.clear()
                pauses.clear()
            self.tell("receive", self.version + 1)
            time.sleep(0.005)  # until they wait
            begun = self.publish()
            for pipe in self.pipes:
                self.answer(pipe)
            times.append(time.monotonic() - begun)
            # All have to be in the call for as long as it takes.
            pauses += times[-1:] if self.contender.is_collective else []
        held = proportional_bytes(self.root) + self.contender.unmapped() - self.array.nbytes
        for _ in range(0 if self.contender.is_collective else 3):
            self.publish()
            self.tell("stage", self.version)
            for pipe in self.pipes:
                self.answer(pipe)
            self.tell("receive", self.version)
            pauses += [self.answer(pipe) for pipe in self.pipes]
        seconds = statistics.median(times)
        return {
            "seconds": seconds,
            "delivered_gb_s": self.contender.size * len(self.pipes) / seconds / 1e9,
            "held_mib": held / MIB,
            "pause_ms": 1e3 * statistics.median(pauses),
        }

    def free(self, kills: bool) -> dict[str, Any]:
        """The publisher goes as fast as it can, and readers look at every element. Perhaps one of them is killed."""
        self.tell("free", FREE_SECONDS)
        begun, longest, answers, victim = time.monotonic(), 0.0, [], None
        error = None
        waiting = dict(zip(self.pipes, self.pids, strict=True))
        while waiting and time.monotonic() - begun < FREE_SECONDS + PATIENCE:
            if kills and victim is None and time.monotonic() - begun > KILLED_AFTER:
                victim, pid = waiting.popitem()
                os.kill(pid, signal.SIGKILL)
            is_over = self.contender.is_collective and time.monotonic() - begun > FREE_SECONDS
            try:
                started = self.publish(END if is_over else None)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"[:200]
                break
            longest = max(longest, time.monotonic() - started)
            for pipe in cast("list[Connection]", wait(list(waiting), timeout=PATIENCE if is_over else 0)):
                with contextlib.suppress(EOFError):
                    answers.append(pipe.recv())
                del waiting[pipe]
        # What the readers say to a publisher that has failed.
        for pipe in cast("list[Connection]", [pipe for pipe in waiting if pipe.poll(AFTERWARDS)]):
            with contextlib.suppress(EOFError):
                answers.append(pipe.recv())
        return {
            "versions": self.version,
            "publisher_error": error,
            "publisher_longest": longest,
            "readers_found": answers,
        }


def proportional_bytes(root: int) -> int:
    """The memory of a process and all that it has started, each shared page once."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    total, left = 0, [root]
    while left:
        process = left.pop()
        left += children.get(process, [])
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def cell(name: str, phase: str, mib: int, readers: int) -> None:
    """One cell, in this process and its children, or, under mpirun, in this rank. Prints what was found."""
    contender = CONTENDERS[name](mib * MIB, readers)
    if name.startswith("MPI"):
        made = under_mpi(contender)
        if made is None:
            return
        pipes, pids, root = made
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", *contender.preload])
        address = contender.start()
        pipes, pids, root = [], [], os.getpid()
        for rank in range(readers):
            here, there = context.Pipe()
            child = context.Process(target=read, args=(CONTENDERS[name](mib * MIB, readers), address, rank, there))
            child.daemon = True
            child.start()
            there.close()
            pipes.append(here)
            pids.append(cast(int, child.pid))
        contender.started()
    running = Cell(contender, pipes, pids, root)
    found = running.deliver() if phase == "deliver" else running.free(phase == "kill")
    print(json.dumps(found), flush=True)
    contender.close()
    os._exit(0)


def under_mpi(contender: Contender) -> tuple[list[Connection], list[int], int] | None:
    """Rank 0 gets pipes to the other ranks, which read."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank == 0:
        with tempfile.TemporaryDirectory() as folder, Listener(f"{folder}/socket") as listener:
            world.bcast(listener.address)
            pipes = [listener.accept() for _ in range(world.size - 1)]
            pids = [pipe.recv() for pipe in pipes]
        contender.started()
        return pipes, pids, os.getppid()
    pipe = Client(world.bcast(None))
    pipe.send(os.getpid())
    read(contender, None, world.rank - 1, pipe)
    return None


def run_cell(name: str, phase: str, mib: int, readers: int) -> dict[str, Any]:
    """One cell in a process group of its own."""
    kind = CONTENDERS[name]
    needs = mib * (1 + kind.serves + kind.held * readers) / 1024
    there = available_gib()
    if needs > 0.7 * there:
        return {"skipped": f"needs {needs:.0f} GiB of memory, and {there:.0f} are free"}
    command = [sys.executable, "-B", __file__, "--cell", name, phase, str(mib), str(readers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    if name.startswith("MPI"):
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command = ["mpirun", "--oversubscribe", "-n", str(readers + 1), *command]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            child = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        except FileNotFoundError as error:
            return {"error": str(error)}
        try:
            out, _ = child.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return {"error": f"stuck: ended after {LIMIT:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if lines:
            return cast("dict[str, Any]", json.loads(lines[-1]))
        errors.seek(0)
        told = [line for line in errors.read().splitlines() if any(map(str.isalpha, line))]
        return {"error": told[-1][:200] if told else f"exit code {child.returncode}"}


def available_gib() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / MIB


def memcpy(mib: int) -> float:
    """GB/s of one thread that copies between two arrays."""
    here, there = np.ones(mib * MIB // 8), np.zeros(mib * MIB // 8)
    best = float("inf")
    for _ in range(5):
        begun = time.monotonic()
        np.copyto(there, here)
        best = min(best, time.monotonic() - begun)
    return mib * MIB / best / 1e9


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    arguments.add_argument("--sizes", nargs="+", type=int, default=[1, 64, 1024], help="in MiB")
    arguments.add_argument("--readers", nargs="+", type=int, default=[1, 2, 8])
    arguments.add_argument("--out", help="write the record to this file")
    arguments.add_argument("--table", help="print the tables of this record, and run nothing")
    for option in ("--repeat", "--cell"):
        help = "run one cell, and print what was found: a name, deliver, free or kill, MiB and readers"
        arguments.add_argument(option, nargs=4, help=help if option == "--repeat" else argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.cell:
        name, phase, mib, readers = given.cell
        cell(name, phase, int(mib), int(readers))
        return
    if given.repeat:
        name, phase, mib, readers = given.repeat
        print(json.dumps(run_cell(name, phase, int(mib), int(readers)), indent=1))
        return
    if given.table:
        print(tables(json.loads(Path(given.table).read_text(encoding="utf-8"))))
        return
    packages = sorted({package for name in given.only for package in CONTENDERS[name].packages} | {"numpy"})
    record = machine.record("peers", packages)
    record["memcpy_gb_s"] = {mib: round(memcpy(mib), 2) for mib in given.sizes}
    record["runs"] = []
    cells = [("free", mib, 2) for mib in given.sizes if mib <= 64] + [("kill", 64, 2)]
    cells += [("deliver", mib, readers) for mib in given.sizes for readers in given.readers]
    for phase, mib, readers in cells:
        for name in given.only:
            found = run_cell(name, phase, mib, readers)
            record["runs"].append({"name": name, "phase": phase, "mib": mib, "readers": readers, **found})
            print(json.dumps(record["runs"][-1]), flush=True)
            machine.finish(record)
            if given.out:  # what there is, should the rest be interrupted
                machine.write(record, given.out)
    print(tables(record))


if __name__ == "__main__":
    main()
