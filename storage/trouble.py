"""When to say that something is wrong: at once, and again every minute as long as it lasts. Pure."""

from __future__ import annotations

import re

from driftline.clock import SECOND_US

AGAIN_US = 60 * SECOND_US
_MOST_KINDS = 100
_VARYING = re.compile(r"[0-9a-f][0-9a-f-]{7,}|\d+")
"""File names, times and counts: two lines that differ only there are the same trouble."""


class Trouble:
    """What is wrong now, and since when."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}
        self._since: int | None = None

    @property
    def quiet(self) -> bool:
        """Whether nothing is wrong."""
        return self._since is None

    def line(self, text: str, now_us: int) -> str | None:
        """What to say about ``text`` at ``now_us``, None if it was said less than a minute ago.

        >>> trouble = Trouble()
        >>> trouble.line("disk full", 0), trouble.line("disk full", 5)
        ('disk full', None)
        >>> trouble.line("disk full", 120 * SECOND_US)
        'disk full (for 2 minutes now)'
        """
        if self._since is None:
            self._since = now_us
        kind = _VARYING.sub("#", text)
        last = self._said.get(kind)
        if last is not None and now_us - last < AGAIN_US:
            return None
        if len(self._said) > _MOST_KINDS:
            self._said.clear()
        self._said[kind] = now_us
        minutes = (now_us - self._since) // AGAIN_US
        return f"{text} (for {minutes} minutes now)" if last is not None and minutes else text

    def over(self) -> None:
        """Everything is well again."""
        self._said.clear()
        self._since = None
