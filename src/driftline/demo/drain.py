"""Whether the tables hold all that a run's topics held: the sink is behind the topics by a second or two."""

from __future__ import annotations

import time
from pathlib import Path

from driftline.demo.readiness import Seen
from driftline.errors import BadData
from driftline.storage.open import open_catalog

LOOK_SECONDS = 1.0
QUIET_SECONDS = 4.0
"""Windows and facts have no count to wait for: they are complete when no more have come for so long."""

_COUNTS = """
    SELECT (SELECT count(*) FROM log WHERE run = $run
              AND kind IN ('frame', 'process_started', 'process_ended', 'checkpoint_saved')),
           (SELECT count(DISTINCT request) FROM evals WHERE run = $run),
           (SELECT count(DISTINCT id) FROM alerts WHERE run = $run),
           (SELECT count(*) FROM windows WHERE run = $run) + (SELECT count(*) FROM facts WHERE run = $run)
""".replace("$run", "?")


class Drain:
    """Asks the tables now and then."""

    def __init__(self, root: Path, run: str, seen: Seen) -> None:
        self._root = root
        self._run = run
        self._seen = seen
        self._due = 0.0
        self._others = -1
        self._quiet_since = 0.0

    def done(self) -> bool:
        """Whether everything is stored."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + LOOK_SECONDS
        try:
            with open_catalog(self._root) as catalog:
                records, evals, alerts, others = catalog.rows(_COUNTS, [self._run] * 5)[0]
        except BadData:  # no table so far
            return False
        if others != self._others:
            self._others, self._quiet_since = others, now
        view = self._seen.runs[self._run]
        return (
            records >= self._seen.records[self._run]
            and evals >= len(view.evaluations)
            and alerts >= len(self._seen.alert_ids.get(self._run, ()))
            and now - self._quiet_since >= QUIET_SECONDS
        )
