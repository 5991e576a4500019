"""What errors say: the cause that it is, a remedy that helps, and whether to try again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slackline

TABLE = {"a": np.zeros(3, "float32")}


def test_what_no_repetition_cures_is_a_bad_option_and_not_a_lost_peer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    tables = slackline.Tables()
    with slackline.Publisher(TABLE) as publisher:
        calls: list[Callable[[], object]] = [
            lambda: slackline.Reader(publisher.address, table="a\nb", timeout=5),
            lambda: tables.publisher("a\nb", TABLE),
        ]
        for path in ("file", "file/socket", "none/socket", "open/socket", "x" * 200):
            address = str(tmp_path / path)
            calls.append(lambda address=address: slackline.Publisher(TABLE, address=address))  # type: ignore[misc]
        for call in calls:
            with pytest.raises(slackline.BadOption) as caught:
                call()
            assert not caught.value.is_retryable and str(caught.value.remedy) in str(caught.value)


def test_a_wrong_type_is_a_type_error_that_says_what_to_give(tmp_path: Path) -> None:
    array: Any = np.zeros(3, "float32")
    with slackline.Publisher(TABLE) as publisher, slackline.Reader(publisher.address) as reader:
        with slackline.Server(TABLE) as server, slackline.Worker([server.address]) as worker:
            wrong: Any = server.address
            mapping, addresses = "give a mapping of names to arrays", "give a list of addresses"
            calls: list[tuple[str, Callable[[], object]]] = [
                (f"type list: {mapping}", lambda: publisher.publish([array])),  # type: ignore[arg-type]
                (f"type ndarray: {mapping}", lambda: reader.pull(array)),
                (f"type ndarray: {mapping}", lambda: worker.step(array)),
                (f"type str: {addresses}", lambda: slackline.Worker(wrong)),
                (f"type int: {addresses}", lambda: slackline.Worker([5])),  # type: ignore[list-item]
                (f"type int: {addresses}", lambda: slackline.Worker(5)),  # type: ignore[arg-type]
                ("type str: give bytes", lambda: publisher.publish(TABLE, label="abc")),  # type: ignore[arg-type]
                (
                    "type int: give bytes, or the path of a file",
                    lambda: slackline.Publisher(TABLE, secret=5),  # type: ignore[arg-type]
                ),
            ]
            for text, call in calls:
                with pytest.raises(TypeError, match=text) as caught:
                    call()
                assert "\n" not in str(caught.value)
            # What is right is taken still.
            assert publisher.publish(TABLE, label=b"abc") == 1
            slackline.Worker((server.address,)).close()
    (tmp_path / "secret").write_text("a secret of a job")
    (tmp_path / "secret").chmod(0o600)
    for secret in (b"a secret of a job", str(tmp_path / "secret"), tmp_path / "secret"):
        slackline.Publisher(TABLE, secret=secret).close()


def test_too_many_workers_are_named_as_such() -> None:
    with pytest.raises(slackline.BadOption, match="option workers cannot be 70000: .* 65535: use fewer workers"):
        slackline.Server(TABLE, workers=70000, scheme="asp")


def test_a_line_that_is_no_record_has_its_remedy_once() -> None:
    with pytest.raises(slackline.BadOption, match="^line 1: ") as caught:
        slackline.check(["x"])
    assert caught.value.remedy is not None and str(caught.value).count("give lines") == 1
    assert str(caught.value).endswith(caught.value.remedy)
