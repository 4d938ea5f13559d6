"""What a run of the kill loop is asked for, and what it answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from driftline.connection import KafkaSettings

Role = Literal["streams", "scheduler", "sink", "evaluator"]
Target = Role | Literal["broker"]
Kind = Literal["kill", "pause", "restart", "move"]
"""``move``: other brokers lead the partitions."""
ROLES: tuple[Role, ...] = ("streams", "scheduler", "sink", "evaluator")
PARTITIONS = 4
SESSION_S = 6.0
"""The shortest session that Apache Kafka allows."""


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Plan:
    """``of_each``: processes of each role; 0: one for the first half of the faults, two for the second."""

    kafka: KafkaSettings
    folder: Path
    """Settings, checkpoints, tables and the logs of all processes."""
    kills: int = 15
    seed: int = 0
    of_each: Literal[0, 1, 2] = 0
    frames_per_s: int = 1_000
    """Of all raw ranks together, as long as the pipeline is not further behind than ``ahead``."""
    ahead: int = 15_000
    """Frames that the ranks may be ahead of the workers or of the tables: what comes while a killed process
    is replaced (its session, its start), so that they are seldom held."""
    between: int = 500
    """Frames that are accepted at least before the next fault."""
    naive_records: int = 1_500
    """Records at the beginning of each partition whose windows the naive oracle works out as well."""
    limit_s: float = 600.0
    """The longest to wait for anything before it counts as stuck."""
    cluster: Any = None
    """A ``JvmCluster`` whose brokers are struck as well."""
    say: Callable[[str], None] = _silent

    @property
    def second_from(self) -> int:
        """The fault from which on there are two of each."""
        return {0: (self.kills + 1) // 2, 1: self.kills, 2: 0}[self.of_each]


@dataclass
class Report:
    """The totals; ``lost``, ``doubled``, ``contradictions`` and ``problems`` are to be none."""

    kills: int = 0
    """Faults done: kill -9, pauses beyond the session, orderly restarts."""
    kinds: Counter[str] = field(default_factory=Counter)
    """The same by kind and role: "kill streams"."""
    at_work: int = 0
    """Of these, faults that struck a process that worked (the others struck while a process recovered)."""
    accepted: int = 0
    """Samples that the ranks were told the broker has."""
    stored: int = 0
    """Rows of the table of samples."""
    lost: int = 0
    """Samples that were accepted and are in no row."""
    doubled: int = 0
    """Rows of a sample beyond its first."""
    contradictions: int = 0
    """Output ids that stand in a topic with two different contents."""
    repeated: int = 0
    """Outputs that were sent again with the same content, which readers drop."""
    filled: int = 0
    """Records that a consumer group skipped and that workers read from the log (at least: a killed worker's
    last count is up to ten seconds old)."""
    frames: int = 0
    frames_per_s: float = 0.0
    """Frames over all the time from the first fault until the ranks ended."""
    held_seconds: float = 0.0
    """Of which the raw ranks waited, since the pipeline was too far behind."""
    behind_at_strikes: list[int] = field(default_factory=list)
    """Records that workers or tables lacked when each fault struck."""
    windows: int = 0
    """Rows of windows, compared with the pure core's."""
    naive_windows: int = 0
    """Of these, rows that the naive oracle worked out as well."""
    outputs: int = 0
    """Outputs of windows, facts, alerts, requests, leases and acceptances, each counted once."""
    evaluations: int = 0
    """Pairs of checkpoint and suite that were asked for, each with one accepted result."""
    problems: list[str] = field(default_factory=list)
    """Every other difference, and processes that ended by themselves."""
    seconds: float = 0.0
    judge_seconds: float = 0.0
    seed: int = 0

    @property
    def clean(self) -> bool:
        whole = self.stored == self.accepted
        return whole and not (self.lost or self.doubled or self.contradictions or self.problems)

    def totals(self) -> dict[str, Any]:
        """All of it as plain values."""
        apart = ("kinds", "problems", "behind_at_strikes")
        plain = {name: value for name, value in vars(self).items() if name not in apart}
        behind = sorted(self.behind_at_strikes) or [0]
        plain |= {"behind_median": behind[len(behind) // 2], "behind_max": behind[-1]}
        return plain | {"kinds": dict(sorted(self.kinds.items())), "problems": len(self.problems)}

    def json(self) -> str:
        return json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in self.totals().items()})
