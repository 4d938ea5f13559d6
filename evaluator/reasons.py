"""Exceptions as one line for people: what a failed evaluation gives as its reason."""

from __future__ import annotations

import traceback

MESSAGE_MAX = 500
SOURCE_MAX = 120


def last_line(error: BaseException) -> str:
    """Type, first line of the message, and the last line of code that was reached.

    >>> last_line(KeyError("x"))
    "KeyError: 'x'"
    """
    text = f"{type(error).__name__}: {_message(error)}".splitlines()[0][:MESSAGE_MAX]
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = frames[-1]
    source = (last.line or "").strip()[:SOURCE_MAX]
    return f"{text} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno}: {source})"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 -- suite code: even showing its error may raise
        return f"its message raises {type(worse).__name__}"
