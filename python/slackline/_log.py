"""The library's log as records of the module `logging`."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable

from . import _slackline

#: The levels of the library, from 1 on. The last one has a line for everything that happens.
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 5)

_lock = threading.Lock()
_thread: threading.Thread | None = None


def enable_logging(level: int | str | None = None) -> None:
    """Hand the library's log to the loggers `slackline...` of the module `logging`.

    `level` is one of `logging`'s, by its number or its name; without it, that of the logger `slackline` now. Lines
    below it are never made. A further call changes the level. The logger of a line is named after the module that it
    comes from, such as `slackline.node.server`, and `logging` decides where it goes::

        import logging, slackline
        logging.basicConfig(level=logging.INFO)
        slackline.enable_logging()

    A thread hands the lines on, so that no thread of the library waits for the interpreter. If they come faster than
    they are written, some are left out, and a warning says how many. At the end of the program the rest is written.
    Where a handler or a filter raises, `sys.excepthook` has the error, and the log goes on with the next line.

    A process that was forked from this one has no log.
    """
    wanted = logging.getLogger("slackline").getEffectiveLevel() if level is None else _number(level)
    _slackline.start_log(sum(wanted <= known for known in _LEVELS))
    global _thread
    with _lock:
        if _thread is None:
            atexit.register(_end)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_hand_on, name="slackline-log", daemon=True)
            _thread.start()


def _number(level: int | str) -> int:
    if isinstance(level, int):
        return level
    names = logging.getLevelNamesMapping()
    if level not in names:
        raise ValueError(f"logging has no level {level!r}: give one of {', '.join(names)}")
    return names[level]


def _hand_on() -> None:
    while (taken := _slackline.take_log()) is not None:
        lines, lost = taken
        for line in lines:
            _guard(_log, *line)
        if lost:
            warning = logging.getLogger("slackline").warning
            _guard(warning, "%d lines of the log were left out: they came too fast", lost)


def _log(number: int, module: str, text: str, created: float) -> None:
    logger, level = logging.getLogger(module.replace("::", ".")), _LEVELS[number - 1]
    if logger.isEnabledFor(level):
        record = logger.makeRecord(logger.name, level, module, 0, text, (), None)
        record.created, record.msecs = created, int(created % 1 * 1000) + 0.0
        logger.handle(record)


def _guard(log: Callable[..., None], *arguments: object) -> None:
    """Log a line. A handler or a filter that raises loses this line, and no later one."""
    try:
        log(*arguments)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)


def _end() -> None:
    _slackline.stop_log()
    if _thread is not None:
        _thread.join(2)
