"""Several tables behind one address, versions by differences, and the secret of readers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import told

import slackline

Array = np.ndarray[Any, Any]

SECRET = b"at least 32 bytes that no one else knows"


class CountingProxy:
    """Passes TCP connections on to one port, and counts the bytes that come from there."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._upstream, self._bytes = (host, int(port)), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{}".format(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _address = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._upstream)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target, source is far), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                self._bytes += len(data) if counts else 0
        except OSError:
            pass
        finally:
            target.close()

    def take(self) -> int:
        """The bytes that came since the last call."""
        taken, self._bytes = self._bytes, 0
        return taken

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def weights() -> Iterator[Array]:
    yield np.random.default_rng(1).standard_normal(200_000).astype("float32")


@pytest.mark.parametrize("relayed", [False, True])
def test_a_reader_that_holds_the_version_before_gets_the_difference(weights: Array, relayed: bool) -> None:
    with slackline.Publisher({"w": weights}, transport="tcp", deltas=4, checksums=True) as publisher:
        publisher.publish({"w": weights})
        near = slackline.Relay(publisher.address, transport="tcp", deltas=4, checksums=True) if relayed else None
        proxy = CountingProxy(near.address if near else publisher.address)
        with slackline.Reader(proxy.address, checksums=True) as reader:
            reader.pull(min_version=1)
            whole = proxy.take()
            assert whole >= weights.nbytes
            for number in range(2, 6):
                weights[number :: 100] *= -1.5  # One value in a hundred.
                publisher.publish({"w": weights}, step=number)
                snapshot = reader.pull(min_version=number, timeout=30)
                assert (snapshot.version, snapshot.step) == (number, number)
                assert snapshot["w"].numpy().tobytes() == weights.tobytes()
                moved = proxy.take()
                assert moved < whole / 20, f"{moved} of {whole} bytes"
        proxy.close()
        if near is not None:
            near.close()


def test_settings_of_differences_that_cannot_be_are_refused() -> None:
    table = {"w": np.zeros(8, "float32")}
    with pytest.raises(slackline.BadOption, match="deltas"):
        slackline.Publisher(table, delta_bytes=100)
    with pytest.raises(slackline.BadOption, match="delta_bytes"):
        slackline.Publisher(table, deltas=1, delta_bytes=0)
    with pytest.raises(OverflowError):
        slackline.Publisher(table, deltas=256)


def filled(value: float, length: int = 4) -> dict[str, Array]:
    return {"w": np.full(length, value, "float32")}


def test_each_adapter_has_versions_of_its_own_behind_one_address(transport: str) -> None:
    with slackline.Tables(transport=transport) as tables:
        names = ["adapter-1", "adapter-2", "adapter-3"]
        adapters = [tables.publisher(name, filled(0, 10 * n)) for n, name in enumerate(names, 1)]
        assert tables.names == names and {adapter.address for adapter in adapters} == {tables.address}
        readers = [slackline.Reader(tables.address, table=name) for name in names]
        for n, adapter in enumerate(adapters, 1):
            for version in range(1, n + 1):
                adapter.publish(filled(10 * n + version, 10 * n))
        for n, reader in enumerate(readers, 1):
            snapshot = reader.pull(min_version=n)
            assert (snapshot.version, snapshot["w"].numpy().tolist()) == (n, [11 * n] * 10 * n)
            assert snapshot.epoch == adapters[n - 1].epoch
        with pytest.raises(slackline.PeerGone, match="`adapter-2` is served there already"):
            tables.publisher("adapter-2", filled(0))
        # One of them is closed, and published again; the others notice nothing.
        adapters[1].close()
        assert tables.names == ["adapter-1", "adapter-3"]
        again = tables.publisher("adapter-2", filled(0, 20), begin_at=2)
        assert again.publish(filled(5, 20)) == 3
        with pytest.raises(slackline.PeerGone):
            readers[1].pull(min_version=3, timeout=30)
        readers[1].reconnect()
        snapshot = readers[1].pull(min_version=3)
        assert (snapshot.epoch, snapshot["w"].numpy()[0]) == (again.epoch, 5)
        assert [readers[0].pull().version, readers[2].pull().version] == [1, 3]
        tables.close()
        with pytest.raises(slackline.OutOfTurn):
            tables.names
        adapters[0].publish(filled(7, 10))
        assert readers[0].pull(min_version=2)["w"].numpy()[0] == 7


def test_a_name_that_is_not_served_is_an_error_that_names_those_there_are(transport: str) -> None:
    with slackline.Tables(transport=transport) as tables:
        served = [tables.publisher(name, filled(0)) for name in ("one", "two")]

        def ask(table: str) -> Callable[[float], object]:
            return lambda timeout: slackline.Reader(tables.address, table=table, timeout=timeout)

        assert told(ask("three"), slackline.Refused, "no table called `three`.*one, two").is_retryable
        told(ask(""), slackline.Refused, "served here by name.*one, two")
        with pytest.raises(slackline.Error, match="255 bytes"):
            slackline.Reader(tables.address, table="x" * 256, timeout=0.3)
        assert len(served) == 2


def test_an_owner_without_names_says_how_its_table_is_asked_for(transport: str) -> None:
    arrays = {"a": np.zeros(3)}
    with slackline.Publisher(arrays, transport=transport) as publisher:
        told(
            lambda timeout: slackline.Reader(publisher.address, table="x", timeout=timeout),
            slackline.Refused,
            "no table called `x` here; ask for its table without a name",
        )


def test_a_relay_passes_one_of_many_tables_on_by_its_name(transport: str) -> None:
    with slackline.Tables(transport=transport) as tables:
        one, other = tables.publisher("one", filled(0)), tables.publisher("other", filled(0))
        one.publish(filled(1))
        other.publish(filled(2))
        with slackline.Relay(tables.address, table="other", transport=transport) as relay:
            with slackline.Reader(relay.address, table="other") as reader:
                assert reader.pull(min_version=1, timeout=30)["w"].numpy()[0] == 2
            told(
                lambda timeout: slackline.Reader(relay.address, table="one", timeout=timeout),
                slackline.Refused,
                "no table called `one`",
            )


def test_with_the_secret_of_readers_a_process_reads_and_is_nothing_else(tmp_path: Path) -> None:
    reading = slackline.reading_secret(SECRET)
    assert SECRET not in reading and slackline.reading_secret(reading) == reading
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    assert slackline.reading_secret(file) == reading
    with slackline.Publisher(filled(0), transport="tcp", secret=SECRET) as publisher:
        publisher.publish(filled(3))
        with slackline.Reader(publisher.address, secret=reading) as reader:
            assert reader.pull()["w"].numpy()[0] == 3
        with pytest.raises(slackline.Refused):
            slackline.Relay(publisher.address, transport="tcp", secret=reading, timeout=5)
        with pytest.raises(slackline.Refused):
            slackline.Reader(publisher.address, secret=slackline.reading_secret(SECRET[::-1]), timeout=5)
    with pytest.raises(slackline.Refused):
        slackline.Publisher(filled(0), transport="tcp", secret=reading)
    # Shared memory asks for no secret.
    with slackline.Publisher(filled(0), transport="shm", secret=reading) as publisher:
        slackline.Relay(publisher.address, secret=reading, timeout=20).close()
    with slackline.Server(filled(0), transport="tcp", secret=SECRET) as server:
        with slackline.Reader(server.address, secret=reading) as reader:
            assert reader.pull().version == 0
        with pytest.raises(slackline.Refused):
            slackline.Worker([server.address], secret=reading, timeout=5)


def test_without_a_secret_there_is_none_for_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACKLINE_SECRET", raising=False)
    monkeypatch.delenv("SLACKLINE_SECRET_FILE", raising=False)
    with pytest.raises(slackline.Refused, match="there is no secret"):
        slackline.reading_secret()
    monkeypatch.setenv("SLACKLINE_SECRET", SECRET.decode())
    assert slackline.reading_secret() == slackline.reading_secret(SECRET)


def test_the_metadata_of_a_table_equals_what_the_table_was_made_of() -> None:
    specs = [slackline.TensorSpec("a", "float32", (3,)), slackline.TensorSpec("b", "int64", (2, 2))]
    with slackline.Publisher(specs) as publisher:
        assert publisher.metadata == specs
    for other in (("c", "int64", (2, 2)), ("b", "uint64", (2, 2)), ("b", "int64", (4,))):
        assert slackline.TensorSpec(*other) != specs[1]
