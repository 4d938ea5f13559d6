"""Exceptions as one line for people: what a failed evaluation gives as its reason."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

import driftline

MESSAGE_MAX = 1_500
SOURCE_MAX = 120
_LIBRARIES = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(driftline.__file__).parent) + os.sep,
    "<",
)
"""Where code lies that is not the user's."""


def one_line(error: BaseException) -> str:
    """Type, the whole message (at most 1,500 characters), the last line of the user's code that was reached.

    >>> one_line(KeyError("x"))
    "KeyError: 'x'"
    """
    text = f"{type(error).__name__}: {' '.join(_message(error).split())}"[:MESSAGE_MAX]
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = next(
        (frame for frame in reversed(frames) if not frame.filename.startswith(_LIBRARIES)), frames[-1]
    )
    source = (last.line or "").strip()[:SOURCE_MAX]
    return f"{text} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno}: {source})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 -- suite code: even showing its error may raise
        return f"its message raises {type(worse).__name__}"
