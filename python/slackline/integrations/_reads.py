"""How long the reads of the plug-ins of Ray and RLlib may take, which have no options."""

from __future__ import annotations

import math
import os

from slackline import BadOption

VARIABLE = "SLACKLINE_RAY_TIMEOUT"
"""The variable of the environment that has the seconds."""


def timeout() -> float:
    """The seconds that a read has to connect, and as many to copy. Raises BadOption if the variable has another text."""
    given = os.environ.get(VARIABLE)
    if not given:
        return 60.0
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        operation, remedy = "reading weights", f"set {VARIABLE} to seconds above 0, or unset it"
        raise BadOption(f"{operation}: {VARIABLE} is {given!r}; {remedy}", operation=operation, remedy=remedy)
    return seconds
