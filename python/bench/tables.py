"""The tables of a record of `peers.py`."""

from __future__ import annotations

import re
from typing import Any

Found = dict[str, Any]


def tables(record: Found) -> str:
    """All of them, as the docs have them."""
    runs: list[Found] = record["runs"]
    names = list(dict.fromkeys(run["name"] for run in runs))
    sizes = sorted({run["mib"] for run in runs if run["phase"] == "deliver"})
    parts = []
    for mib in sizes:
        of = [run for run in runs if run["phase"] == "deliver" and run["mib"] == mib]
        readers = sorted({run["readers"] for run in of})
        copy = record["memcpy_gb_s"][mib if mib in record["memcpy_gb_s"] else str(mib)]
        head = ["", *(f"GB/s to {count}" for count in readers)]
        head += [f"{what} ({count})" for what in ("held", "pause, ms") for count in (readers[0], readers[-1])]
        of = [{**run, **_held(run, runs)} for run in of]
        rows = _rows(head, [_delivery(name, of, readers) for name in names])
        parts.append(f"{mib} MiB; one memcpy runs at {copy} GB/s:\n\n{rows}")
    head = ["", "torn of reads, 1 MiB", "torn of reads, 64 MiB"]
    head += ["a reader is killed: the publisher", "the other reader"]
    parts.append(_rows(head, [_deaths(name, runs) for name in names]))
    return "\n\n".join(parts)


def _short(error: str) -> str:
    """The beginning of an error, without the lines of sources that stand in brackets."""
    words = re.sub(r"\[[^\]]*\]:?\d* *", "", error)
    return words if len(words) <= 70 else f"{words[:70].rpartition(' ')[0]} ..."


def _held(run: Found, runs: list[Found]) -> Found:
    """The arrays that are held: by how much more memory there is than with the smallest ones, of which all is told."""
    if "held_mib" not in run:
        return {}
    measured = [one for one in runs if "held_mib" in one]
    alike = [one for one in measured if (one["name"], one["readers"]) == (run["name"], run["readers"])]
    least = min(alike, key=lambda one: int(one["mib"]))
    if least["mib"] == run["mib"]:
        return {"held": f"{run['held_mib']:.0f} MiB"}
    return {"held": f"{(run['held_mib'] - least['held_mib']) / (run['mib'] - least['mib']):.1f}"}


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["-"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(found: Found | None, key: str, form: str) -> str:
    if found is None:
        return ""
    if "skipped" in found:
        return "no memory"
    return form.format(found[key]) if key in found else "error"


def _delivery(name: str, runs: list[Found], readers: list[int]) -> list[str]:
    of = {run["readers"]: run for run in runs if run["name"] == name}
    row = [name, *(_cell(of.get(count), "delivered_gb_s", "{:.2f}") for count in readers)]
    for key, form in (("held", "{}"), ("pause_ms", "{:.3g}")):
        row += [_cell(of.get(count), key, form) for count in (readers[0], readers[-1])]
    return row


def _deaths(name: str, runs: list[Found]) -> list[str]:
    row = [name]
    for mib in (1, 64):
        found = _of(runs, name, "free", mib)
        answers = found.get("readers_found", []) if found else []
        told = "error" if found else ""
        if answers:
            told = f"{sum(one['torn'] for one in answers)} of {sum(one['reads'] for one in answers)}"
        row.append(told)
    found = _of(runs, name, "kill", 64)
    if not found or "readers_found" not in found:
        told = _short(found["error"]) if found else ""
        return [*row, told, told]
    longest = found["publisher_longest"]
    error = found["publisher_error"]
    row.append(f"fails: {_short(error)}" if error else f"goes on, longest wait {longest:.2f} s")
    answers = found["readers_found"]
    if not answers:
        row.append("says nothing")
    elif answers[0]["error"]:
        row.append(f"fails: {_short(answers[0]['error'])}")
    else:
        row.append(f"goes on, longest gap {answers[0]['longest_gap']:.2f} s")
    return row


def _of(runs: list[Found], name: str, phase: str, mib: int) -> Found | None:
    return next((run for run in runs if (run["name"], run["phase"], run["mib"]) == (name, phase, mib)), None)
