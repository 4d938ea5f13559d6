"""How long things have certainly been as they are, whatever the clocks of hosts and file servers say. Pure.

A file's time compared with this host's clock is an age only if both clocks are right, and were then: one that
was set back, or runs ahead of the host that wrote, makes young files old. So what may be in use is taken away
only when this process itself has seen it for so long, by a clock that never goes back; or when it looks
older than that by a day more, which is further than clocks go wrong in practice (time zones, standing hosts).
"""

from __future__ import annotations

from collections.abc import Mapping

DOUBT_S = 86_400.0
"""By so much clocks may be wrong."""


class Sightings:
    """What was there when last looked, and since when it has been.

    >>> seen = Sightings()
    >>> seen.settled({"a": 7200.0}, steady_s=0, for_s=3600)
    set()
    >>> seen.settled({"a": -50.0, "b": 90_001.0}, steady_s=3600, for_s=3600) == {"a", "b"}
    True
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def settled(self, ages_s: Mapping[str, float], *, steady_s: float, for_s: float) -> set[str]:
        """Which of what is there now (with its age by the clocks of the day) has certainly been so for
        ``for_s``; what is not there is forgotten."""
        self._since = {name: self._since.get(name, steady_s) for name in ages_s}
        return {
            name
            for name, age_s in ages_s.items()
            if steady_s - self._since[name] >= for_s or age_s >= for_s + DOUBT_S
        }
