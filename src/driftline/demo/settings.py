"""The settings file of the demonstration: an ordinary one, written beside the run so that it can be read."""

from __future__ import annotations

from pathlib import Path

EVALUATE_EVERY = 100
"""Steps; every second checkpoint is evaluated, so that one sees the trigger choose."""
SUITES = ("addition", "answers")

_TEXT = """\
# Settings of this run of the demonstration. Every role was started with it:
#   driftline streams|scheduler|sink|evaluator --config THIS_FILE
storage:
  root: {root}

windows:
  - {{axis: time, size: 10s, every: 1s}}
  - {{axis: step, size: 50, every: 1}}

streams:
  per_rank: [span/forward, span/data]   # windows of these also by rank
{embedded}
evaluation:
  every: {{steps: {every}}}
  at_start: true          # the untrained model, to see where it began
  at_end: true
  suites:
    - {{name: addition, target: "driftline.demo.suite:addition", settings: {{count: 300}}}}
    - {{name: answers, target: "driftline.demo.suite:answers", settings: {{count: 300}}}}

evaluator:
  device: cpu
  threads: 1
  nice: 15                # training on the same cores goes first

# The built-in detectors look for spikes and divergence of the loss, slow and silent ranks, and NaN.
detectors:
  # Here four ranks and all parts share a few cores, so that each rank is slow by turns for a moment. Where
  # ranks have their own devices the default, 1.3 times, is the better one.
  - {{kind: slow_rank, params: {{ratio: 2.0}}}}

# A threshold of one's own beside them:
alerting:
  rules:
    - {{name: memory-full, when: "memory_utilization > 97 for 10s", severity: warn}}
"""
_EMBEDDED = "  session_timeout: 2s      # only the embedded broker takes so short a one\n"


def write(path: Path, *, root: Path, embedded: bool, evaluate_every: int = EVALUATE_EVERY) -> None:
    """Writes the file."""
    text = _TEXT.format(root=_quoted(str(root)), every=evaluate_every, embedded=_EMBEDDED if embedded else "")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _quoted(text: str) -> str:
    """A YAML text that means exactly ``text``.

    >>> _quoted("it's: here")
    "'it''s: here'"
    """
    return "'" + text.replace("'", "''") + "'"
