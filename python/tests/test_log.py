"""The library's log in Python's own logging."""

from __future__ import annotations

import subprocess
import sys

import pytest

import slackline

PROGRAM = """
import logging, os, sys, slackline

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
{enable}
publisher = slackline.Publisher([slackline.TensorSpec("a", "float32", (2,))])
slackline.Reader(publisher.address, timeout=30).close()
{then}
# Its thread has ended then, and every line of it has come before the end of the log.
publisher.close()
"""


def run(enable: str, then: str = "", errors: list[str] | None = None) -> list[str]:
    program = PROGRAM.format(enable=enable, then=then)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    told = [line for line in done.stderr.splitlines() if not line.startswith(("Traceback", " "))]
    assert (done.returncode, told) == (0, errors or [])
    return done.stdout.splitlines()


def test_the_log_goes_to_the_loggers_of_its_modules() -> None:
    lines = run("slackline.enable_logging()")
    assert any(line.startswith("INFO slackline.node.") and "listening" in line for line in lines), lines
    # The level is that of the logger.
    assert not any(line.startswith("DEBUG") for line in lines), lines
    assert run("logging.disable(logging.INFO); slackline.enable_logging()") == []


def test_there_is_no_log_until_it_is_asked_for_and_its_level_can_change() -> None:
    assert run("") == []
    more = "logging.getLogger().setLevel(logging.DEBUG); slackline.enable_logging(logging.DEBUG)"
    more += "\nslackline.Reader(publisher.address, timeout=30).close()"
    lines = run("slackline.enable_logging(logging.CRITICAL)", more)
    assert lines and not any("listening" in line for line in lines), lines


def test_a_level_may_be_given_by_its_name() -> None:
    assert any("listening" in line for line in run('slackline.enable_logging("INFO")'))
    assert run('slackline.enable_logging("CRITICAL")') == []
    with pytest.raises(ValueError, match="logging has no level 'LOUD': give one of CRITICAL, "):
        slackline.enable_logging("LOUD")


def test_lines_that_come_too_fast_are_left_out_and_counted() -> None:
    enable = (
        "import threading\n"
        "go_on = threading.Event()\n"
        "logging.getLogger().handlers[0].addFilter(lambda record: go_on.wait(600))\n"
        "slackline.enable_logging()"
    )
    # Each reader is told to have joined, and a thousand lines are kept.
    then = (
        "for _ in range(1500):\n"
        "    slackline.Reader(publisher.address, timeout=30).close()\n"
        "go_on.set()"
    )
    lines = run(enable, then)
    assert any(line.startswith("WARNING slackline ") and "left out" in line for line in lines), lines[-5:]
    assert 1024 <= len(lines) < 2048 + 2


def test_a_forked_process_has_no_log_and_does_not_wait_for_one() -> None:
    child = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    slackline.Publisher([slackline.TensorSpec('b', 'float32', (2,))])\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    lines = run("slackline.enable_logging()", child)
    assert sum("listening" in line for line in lines) == 1, lines


RAISES = """
def look(record):
    if "listening" in record.getMessage():
        raise {error}("refused")
    return True

class Looks(logging.Handler):
    emit = staticmethod(look)

{way}
slackline.enable_logging()
"""


@pytest.mark.parametrize("way", ["getLogger('slackline').addHandler(Looks())", "root.handlers[0].addFilter(look)"])
def test_a_handler_or_a_filter_that_raises_loses_its_line_alone(way: str) -> None:
    lines = run(RAISES.format(error="RuntimeError", way=f"logging.{way}"), errors=["RuntimeError: refused"])
    assert lines and not any("listening" in line for line in lines), lines


def test_a_log_whose_thread_was_ended_begins_again() -> None:
    enable = RAISES.format(error="SystemExit", way="logging.root.handlers[0].addFilter(look)")
    then = (
        "import threading\n"
        "while any(thread.name == 'slackline-log' for thread in threading.enumerate()):\n"
        "    pass\n"
        "slackline.enable_logging()\n"
        "slackline.Reader(publisher.address, timeout=30).close()"
    )
    assert run(enable, then)
