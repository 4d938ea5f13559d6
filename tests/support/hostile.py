"""Names that somebody may type or send, each of which has broken a program somewhere."""

from __future__ import annotations

NAMES = [
    "a/../../b",
    "/etc/x",
    "..",
    "../../../../tmp/escaped",
    "'; DROP TABLE samples; --",
    '"; DROP VIEW samples; --',
    "x') OR ('1'='1",
    "a;b",
    "nul\0byte",
    "line\nbreak\r\n2026 sink: forged",
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "\x9b31m",
    "exe\u202efdp",
    "\u2028line separator",
    "%s%n{0}{run}{{",
    "$(touch owned)`touch owned`",
    "C:\\windows\\*?<>|",
    "[bold]markup[/bold][link=http://x]y[/link]",
    "NULL",
    " ",
    "=cmd|' /C calc'!A0",
    "漢字 😀",
    "n" * 590,
]
"""None of them is longer than a metric's name may be."""
STEERING = "\x07\x1b\x9b\u202e\u2028"
"""What must not reach a terminal out of a name."""
