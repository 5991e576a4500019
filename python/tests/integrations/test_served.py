"""The source of states behind torchft, verl and vLLM: each address of a publisher is one of a source."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pods
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `cargo xtask wheel --integrations` installs it")

from slackline import Error, Publisher
from slackline.integrations import _served
from slackline.integrations._hosts import VARIABLE
from slackline.integrations._served import Overtaken, Sink, Source

SECRET = "an example of a secret that is long enough"


@pytest.mark.parametrize(
    "form", ["{name}", "{folder}/w.sock", "127.0.0.1:0", "{name},127.0.0.1:0", "127.0.0.1:0,{name}"]
)
def test_a_state_is_sent_and_received_at_each_address_of_a_publisher(form: str, tmp_path: Path) -> None:
    address = form.format(name=f"@slackline-test-{time.time_ns()}", folder=tmp_path)
    source = Source({"address": address})
    try:
        sinks = [Sink(part, None, 30.0) for part in source.address.split(",")]
        # The second state has another table, and so another publisher.
        for step, size in ((1, 3), (2, 5)):
            source.publish({"w": torch.full((size,), float(step))}, step, 30.0)
            for sink in sinks:
                assert sink.pull(step, 30.0)["w"].torch().tolist() == [step] * size
        for sink in sinks:
            sink.close()
    finally:
        source.close()


def test_a_sink_waits_for_no_version_of_another_publisher_than_the_note_names() -> None:
    state, source = {"w": torch.ones(3).numpy()}, Source({"address": "127.0.0.1:0"})
    try:
        with Publisher(state, address="127.0.0.1:0") as first:
            address, epoch = first.address, first.epoch
        sink = Sink(source.address, None, 30.0)
        with Publisher(state, address=address) as second:
            second.publish(state)
            with pytest.raises(Overtaken, match="another publisher"):
                sink._read(address, epoch, 50, lambda: 30.0)
            assert sink._read(address, second.epoch, 1, lambda: 30.0).version == 1
        sink.close()
    finally:
        source.close()


def test_a_step_that_has_given_way_is_waited_for_by_no_sink() -> None:
    source = Source({"address": "127.0.0.1:0"})
    try:
        source.publish({"w": torch.full((3,), 2.0)}, 2, 30.0)
        sink = Sink(source.address, None, 30.0)
        begun = time.monotonic()
        with pytest.raises(Overtaken, match="step 1 has given way to that of step 2"):
            sink.pull(1, 60.0)
        assert time.monotonic() - begun < 30
        # A pull that is under way when the next step comes holds the sink up no longer.
        waits = threading.Thread(target=lambda: pytest.raises(Overtaken, sink.pull, 3, 60.0))
        waits.start()
        source.publish({"w": torch.full((3,), 4.0)}, 4, 30.0)
        assert sink.pull(4, 30.0)["w"].torch().tolist() == [4.0] * 3
        waits.join(30)
        assert not waits.is_alive()
        sink.close()
    finally:
        source.close()


def test_more_rollouts_than_a_publisher_takes_by_default_read_one_source() -> None:
    source = Source({})
    sinks: list[Sink] = []
    try:
        source.publish({"w": torch.ones(3)}, 1, 30.0)
        for _ in range(65):
            sinks.append(Sink(source.address, None, 10.0))
            assert sinks[-1].pull(1, 10.0)["w"].torch().tolist() == [1.0] * 3
    finally:
        for sink in sinks:
            sink.close()
        source.close()


def test_the_default_device_of_torch_is_not_that_of_a_state() -> None:
    source = Source({})
    try:
        with torch.device("meta"):
            source.publish({"w": torch.ones(3, device="cpu")}, 1, 30.0)
        sink = Sink(source.address, None, 30.0)
        assert sink.pull(1, 30.0)["w"].torch().tolist() == [1.0] * 3
        sink.close()
    finally:
        source.close()


STOPPED = """
import sys
from slackline.integrations._served import Sink
sink = Sink(sys.argv[1], None, 30.0)
for step in (1, 2):
    print(sink.pull(step, 30.0)["w"].torch().tolist(), flush=True)
    sys.stdin.readline()
"""


def test_a_sink_that_was_stopped_for_longer_than_the_lease_goes_on() -> None:
    source = Source({"address": "127.0.0.1:0", "lease": 0.3})
    try:
        source.publish({"w": torch.ones(3)}, 1, 30.0)
        command = [sys.executable, "-c", STOPPED, source.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stdin is not None
            assert child.stdout.readline() == "[1.0, 1.0, 1.0]\n"
            child.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 30
            while source._notes.readers:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            source.publish({"w": torch.full((3,), 2.0)}, 2, 30.0)
            child.send_signal(signal.SIGCONT)
            child.stdin.write("\n\n")
            child.stdin.flush()
            assert child.stdout.readline() == "[2.0, 2.0, 2.0]\n"
    finally:
        source.close()


def test_a_sink_goes_on_with_the_source_that_comes_after_one_at_its_address() -> None:
    name = f"@slackline-test-{time.time_ns()}"
    source = Source({"address": name})
    sink = Sink(name, None, 30.0)
    for number in (1, 2):
        for step in (1, 2, 3):
            source.publish({"w": torch.full((3,), 10.0 * number + step)}, step, 30.0)
            # The numbers of the notes begin again with the second source.
            assert sink.pull(None, 30.0)["w"].torch().tolist() == [10.0 * number + step] * 3
        source.close()
        source = Source({"address": name})
    source.close()
    sink.close()


def test_a_sink_outlives_a_publisher_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source({"address": "127.0.0.1:0"})
    sink = Sink(source.address, None, 30.0)
    try:
        source.publish({"w": torch.ones(3)}, 1, 30.0)
        assert sink.pull(1, 30.0)["w"].torch().tolist() == [1] * 3
        # The state is given back, and is sent again at another address while a sink asks for it.
        source.drop()
        monkeypatch.setattr(_served, "_CONNECT", 0.2)
        with pytest.raises(Error):
            sink.pull(1, 0.5)
        threading.Timer(0.5, source.publish, ({"w": torch.full((3,), 2.0)}, 1, 30.0)).start()
        assert sink.pull(1, 30.0)["w"].torch().tolist() == [2] * 3
    finally:
        sink.close()
        source.close()


def test_a_source_that_listens_everywhere_hands_out_addresses_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "127.0.0.1")
    source = Source({"address": "0.0.0.0:0", "secret": SECRET.encode()})
    try:
        source.publish({"w": torch.ones(3)}, 1, 30.0)
        assert source.address.startswith("127.0.0.1:")
        sink = Sink(source.address, SECRET.encode(), 30.0)
        assert sink.pull(1, 30.0)["w"].torch().tolist() == [1, 1, 1]
        assert sink._states is not None and sink._states.address.startswith("127.0.0.1:")
        sink.close()
    finally:
        source.close()


SERVE = """
import time, torch
from slackline.integrations._served import Source
source = Source({"address": "0.0.0.0:0"})
source.publish({"w": torch.ones(3)}, 1, 30.0)
print(source.address, flush=True)
time.sleep(60)
"""

READ = """
import sys
from slackline.integrations._served import Sink
print(Sink(sys.argv[1], None, 30.0).pull(1, 30.0)["w"].torch().tolist())
"""


def test_a_state_is_read_by_another_host_at_the_address_that_is_handed_out(tmp_path: Path) -> None:
    if reason := pods.obstacle():
        pytest.skip(reason)
    names = tmp_path / "names"
    names.write_text("127.0.0.1 localhost\n10.77.0.11 trainer\n10.77.0.12 rollout\n")
    environment = {"SLACKLINE_SECRET": SECRET}
    with pods.Cluster(names) as cluster:
        trainer, rollout = cluster.pod("trainer", "10.77.0.11"), cluster.pod("rollout", "10.77.0.12")
        serving: subprocess.Popen[str] = trainer.start([sys.executable, "-c", SERVE], environment)
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        assert address.startswith("10.77.0.11:")
        reading = rollout.start([sys.executable, "-c", READ, address], environment)
        assert reading.communicate(timeout=60)[0] == "[1.0, 1.0, 1.0]\n"
