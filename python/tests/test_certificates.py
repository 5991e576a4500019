"""Certificates: what a reader asked for and got is checked by its words and the publisher's alone."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import version

import slackline

Pair = tuple[slackline.Publisher, slackline.Reader]

WAYS = ["pull", "kept", "into", "pin", "prefetch"]


def read(reader: slackline.Reader, way: str, **asked: Any) -> str:
    """The certificate of one read."""
    if way == "pin":
        with reader.pin(**asked) as pinned:
            return pinned.certificate()
    if way == "prefetch":
        reader.prefetch(**asked)
        return reader.swap().certificate()
    return reader.pull(version(0) if way == "into" else None, **asked).certificate()


def facts(record: str) -> dict[str, Any]:
    """What a certificate or a publication says."""
    ((_kind, said),) = json.loads(record).items()
    return dict(said)


def test_a_certificate_says_what_was_asked_and_given(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    began = time.time_ns()
    published = facts(publisher.publish_recorded(version(7), step=5, label=b"\x07"))
    complete = time.time_ns()
    snapshot = reader.pull(max_staleness=3, min_version=1)
    said = facts(snapshot.certificate())
    ended = time.time_ns()
    assert (said["max_staleness"], said["at_least"], said.get("exactly")) == (3, 1, None)
    assert (said["version"], said["newest"], said["published_ns"]) == (2, 2, snapshot.published_ns)
    assert said["epoch"] == said["origin"] == published["origin"] == f"{publisher.epoch:016x}"
    assert said["tag"] == published["tag"] == {"step": 5, "label": "07" + 31 * "00"}
    assert began <= published["published_ns"] <= published["complete_ns"] <= complete
    assert complete <= said["began_ns"] <= said["ended_ns"] <= ended
    digests = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in version(7).items()}
    assert said["digests"] == published["digests"] == digests
    exact = facts(reader.pull(version=2).certificate())
    assert (exact["exactly"], "max_staleness" in exact, exact["sequence"] > said["sequence"]) == (2, False, True)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_read_is_verified_by_its_certificate(transport: str, pair: Pair, way: str) -> None:
    if (transport, way) == ("tcp", "pin"):
        pytest.skip("pins are of shared memory")
    publisher, reader = pair
    trace = []
    for number in range(1, 9):
        trace.append(publisher.publish_recorded(version(number), step=number))
        trace.append(read(reader, way, max_staleness=2 if way == "kept" else 0))
    verdict = slackline.check(trace)
    assert (verdict.publications, verdict.reads, verdict.verified) == (8, 8, 8) and not verdict.violations
    newest_first = slackline.check(reversed(trace))
    assert (newest_first.verified, newest_first.violations) == (8, [])


def test_a_certificate_tells_what_was_changed_after_the_read(pair: Pair) -> None:
    publisher, reader = pair
    publication = publisher.publish_recorded(version(3))
    into = version(0)
    snapshot = reader.pull(into)
    into["a"][999] = 4
    verdict = slackline.check([publication, snapshot.certificate() + "\n"])
    (violation,) = verdict.violations
    assert (violation.property, violation.line, violation.against) == ("whole", 2, 1)
    assert "`a`" in violation.found and (verdict.verified, verdict.unverified) == (0, 0)


def test_a_read_beyond_its_bound_is_found_by_the_records_alone(pair: Pair) -> None:
    publisher, reader = pair
    trace = [publisher.publish_recorded(version(number)) for number in range(1, 4)]
    said = json.loads(reader.pull(version=1).certificate())
    assert slackline.check([*trace, json.dumps(said)]).violations == []
    said["certificate"].pop("exactly")
    said["certificate"]["max_staleness"] = 1
    found = slackline.check([*trace, json.dumps(said)]).violations
    assert {violation.property for violation in found} == {"bounded"}


def test_what_is_no_record_is_refused_with_its_line() -> None:
    with pytest.raises(slackline.BadOption, match="line 3"):
        slackline.check(["", "\n", "no record"])


def test_slices_are_judged_without_their_bytes(pair: Pair) -> None:
    publisher, _ = pair
    publication = publisher.publish_recorded(version(1))
    some = slackline.Reader(publisher.address, select={"a": (slice(10, 20),), "b": None})
    assert list(facts(some.pull().certificate())["digests"]) == ["b"]
    part = slackline.Reader(publisher.address, select={"a": (slice(10, 20),)})
    verdict = slackline.check([publication, part.pull().certificate()])
    assert (verdict.verified, verdict.unverified, verdict.violations) == (0, 1, [])


def test_a_pin_that_has_ended_and_a_workers_parameters_have_no_certificate() -> None:
    arrays = {"a": np.zeros(8, "float32")}
    publisher = slackline.Publisher(arrays)
    with slackline.Reader(publisher.address).pin() as pinned:
        pass
    with pytest.raises(slackline.OutOfTurn):
        pinned.certificate()
    with slackline.Server(arrays) as server, pytest.raises(slackline.Unsupported):
        server.parameters().certificate()


def test_a_frame_has_a_record_if_it_was_asked_for_and_published(pair: Pair) -> None:
    publisher, reader = pair
    with publisher.frame() as frame:
        pass
    assert (frame.version, frame.publication) == (1, None)
    with pytest.raises(ZeroDivisionError), publisher.frame(recorded=True) as dropped:
        1 / 0
    assert dropped.publication is None
    with publisher.frame(step=9, recorded=True) as frame:
        frame["a"][...] = 2
        frame["b"][...] = 2
    assert frame.publication is not None and facts(frame.publication)["version"] == 2
    assert slackline.check([frame.publication, reader.pull().certificate()]).verified == 1


def test_reads_beside_a_publisher_that_never_pauses_and_a_prefetch_keep_every_promise(transport: str) -> None:
    publisher = slackline.Publisher(version(0), transport=transport)
    reader = slackline.Reader(publisher.address)
    trace: list[str] = []
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            trace.append(publisher.publish_recorded(version(publisher.version)))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        # The version at which a publisher begins has no record.
        while not trace:
            time.sleep(0.001)
        until, turn = time.monotonic() + 1.0, 0
        while time.monotonic() < until or turn < 20:
            turn += 1
            reader.prefetch(min_version=publisher.version + 1)
            for staleness in (0, 4, 2):
                trace.append(reader.pull(max_staleness=staleness).certificate())
            trace.append(read(reader, "into"))
            if transport == "shm":
                trace.append(read(reader, "pin"))
            trace.append(reader.swap().certificate())
    finally:
        is_over.set()
        thread.join()
    verdict = slackline.check(trace)
    assert verdict.violations == []
    assert verdict.verified == verdict.reads >= 100


def test_a_read_never_goes_back_behind_one_that_another_way_brought(pair: Pair) -> None:
    publisher, reader = pair
    publisher.publish(version(1))
    assert reader.pull().version == 1
    publisher.publish(version(2))
    assert reader.pull(version(0)).version == 2
    assert reader.pull(max_staleness=5).version == 2
    reader.pull(version=1)
    assert reader.pull(max_staleness=5).version == 2


def test_a_prefetch_leaves_a_pin_alone_and_goes_on_after_it(python: Any) -> None:
    publisher = slackline.Publisher(version(0), frames=3)
    reader = slackline.Reader(publisher.address)
    publisher.publish(version(1))
    reader.prefetch(min_version=2)
    with reader.pin() as pinned:
        for number in range(2, 9):
            publisher.publish(version(number))
            time.sleep(0.03)
        assert pinned.version == 1 and (pinned["a"].numpy() == 1).all()
    assert reader.swap().version == 8


def test_a_prefetch_goes_on_when_other_reads_come_between(pair: Pair) -> None:
    publisher, reader = pair
    reader.prefetch(min_version=2)
    publisher.publish(version(1))
    assert reader.pull(min_version=1).version == 1
    publisher.publish(version(2))
    assert reader.swap(timeout=20).version == 2


def test_the_last_line_of_a_process_that_was_killed_is_left_out_and_told(pair: Pair, tmp_path: Path) -> None:
    publisher, reader = pair
    publication = publisher.publish_recorded(version(1))
    certificate = reader.pull().certificate()
    trace = tmp_path / "trace.jsonl"
    for cut in (certificate[:1], certificate[:-1], certificate[:40], "\0\0\0"):
        trace.write_text(f"{publication}\n{certificate}\n{cut}")
        with trace.open() as file:
            verdict = slackline.check(file)
        assert (verdict.verified, verdict.violations, verdict.unfinished) == (1, [], 3)
        # With its end, or before another line, it is no record.
        for lines in ([publication, f"{cut}\n"], [cut, certificate]):
            with pytest.raises(slackline.BadOption, match="line [12]: the line is no record"):
                slackline.check(lines)
    assert slackline.check([publication, certificate]).unfinished is None
    assert slackline.check([publication, certificate[:40]]).unfinished == 2
    with pytest.raises(slackline.BadOption, match="line 2: the line is no record"):
        slackline.check([publication, "no record"])


def test_a_last_line_that_is_cut_inside_a_character_is_left_out(tmp_path: Path) -> None:
    arrays = {"größe": np.zeros(8, "float32")}
    with slackline.Publisher(arrays) as publisher:
        line = publisher.publish_recorded(arrays).encode()
    inside = line.index("ö".encode()) + 1
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(line + b"\n" + line[:inside])
    with trace.open(encoding="utf-8", errors="replace") as file:
        verdict = slackline.check(file)
    assert (verdict.publications, verdict.violations, verdict.unfinished) == (1, [], 2)


def test_a_trace_without_any_record_has_no_verdict(pair: Pair) -> None:
    publisher, _reader = pair
    publication = publisher.publish_recorded(version(1))
    for lines in ([], ["", "\n"], [publication[:30]]):
        with pytest.raises(slackline.BadOption, match="there is no record"):
            slackline.check(lines)
    with pytest.raises(TypeError, match="type str: give its lines"):
        slackline.check(f"{publication}\n")
    assert slackline.check(f"{publication}\n".splitlines(keepends=True)).publications == 1
