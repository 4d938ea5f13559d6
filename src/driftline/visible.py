"""Text from elsewhere on its way to a terminal or a log: what could steer it is shown instead.

Names of runs, metrics, suites and hosts, and what errors quote of them, are whatever somebody typed or sent.
An escape sequence in one would recolour, rename or type into the terminal of whoever looks; a line break
would forge a line of the log; a sign that turns the direction of writing would show another name.
"""

from __future__ import annotations

import logging
from types import TracebackType

_STEERING = (
    *range(0x20),  # line breaks and escape among them
    *range(0x7F, 0xA0),  # 0x9B is an escape sequence's beginning in one character
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),  # line and paragraph separator, direction
    *range(0x2066, 0x206A),
)
_TABLE = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _STEERING}
_TABLE |= {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_MOST = 4_000


def visible(text: str, most: int = _MOST) -> str:
    """``text`` with escapes for what steers a terminal, at most ``most`` characters of it.

    >>> visible("a\\x1b[31mb\\nc"), visible("exe\\u202efdp"), visible("é 漢 🙂"), visible("abcdef", 4)
    ('a\\\\x1b[31mb\\\\nc', 'exe\\\\u202efdp', 'é 漢 🙂', 'abc…')
    """
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_TABLE).encode(errors="backslashreplace").decode()


class VisibleFormatter(logging.Formatter):
    """One line per message, whatever it quotes; a trace keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Not with the text of a trace that another handler's formatter has left in the record."""
        left, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = left

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return visible(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return "\n".join(map(visible, super().formatException(ei).split("\n")))
