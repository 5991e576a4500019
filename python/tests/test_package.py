"""The package itself: its pages, its types, and what it does without."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import slackline

README = importlib.metadata.metadata("slackline").json["description"]
DOCS = Path(__file__).parents[2] / "docs"
PAGES = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ["python", "weights"])
BLOCKS = re.findall(r"^```python\n(.*?)^```", f"{README}\n{PAGES}", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_each_program_of_the_pages_runs_as_it_stands(block: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[block]], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    # What a program prints stands behind its call.
    expected = re.findall(r"print\(.*\)  # (.*)$", BLOCKS[block], re.MULTILINE)
    assert done.stdout.splitlines() == expected


def test_the_readme_opens_with_five_lines_to_a_view() -> None:
    assert len(BLOCKS) >= 4 and len(BLOCKS[0].strip().splitlines()) == 5


def test_the_readme_leads_to_a_reader_of_a_running_publisher() -> None:
    (commands,) = re.findall(r"^```sh\n(.*?)^```", f"{README}", re.DOTALL | re.MULTILINE)
    # What it installs is installed here.
    install, _, script = commands.partition("\n")
    assert install.endswith("pip install target/wheels/slackline-*.whl numpy")
    script = script.replace("venv/bin/python", sys.executable)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert len(lines) == 3 and done.returncode == 0, done.stderr
    for version, weight in lines:
        assert weight == str(np.full(4, int(version), "float32"))


def test_neither_numpy_nor_torch_is_needed_to_import_and_to_read() -> None:
    code = (
        "import sys, slackline\n"
        "publisher = slackline.Publisher([slackline.TensorSpec('a', 'float32', (2,))])\n"
        "publisher.publish({'a': memoryview(bytes(8)).cast('f')})\n"
        "view = slackline.Reader(publisher.address).pull()['a']\n"
        "assert memoryview(view).tolist() == [0.0, 0.0]\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_everything_public_has_a_docstring() -> None:
    for name in slackline.__all__:
        thing = getattr(slackline, name)
        assert thing.__doc__, name
        for member, value in getattr(thing, "__dict__", {}).items():
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member}"


def test_the_wheel_is_typed_and_small() -> None:
    folder = Path(slackline.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_slackline.pyi").exists()
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 16 << 20


def test_each_plug_in_has_fewer_than_300_lines() -> None:
    files = sorted((Path(slackline.__file__).parent / "integrations").glob("*.py"))
    assert len(files) > 6
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) < 300, file.name
