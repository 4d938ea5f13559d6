"""What a stream worker counts, under the names that every stage uses; one line for people and for tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Health:
    """Counters since the start of the process; ``lag`` in records, by partition."""

    received: int = 0
    """Records that came in, those dropped included."""
    applied: int = 0
    sent: int = 0
    """Outputs handed to the producer."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason: "repeated" (applied before), "unassigned", "oversized" (an output beyond Kafka's limit)."""
    filled: int = 0
    """Records that the consumer group skipped and that were read from the log itself."""
    lost: int = 0
    """Offsets that the log no longer had."""
    snapshots: int = 0
    recoveries: int = 0
    errors: int = 0
    lag: dict[int, int] = field(default_factory=dict)

    def line(self) -> str:
        """All of it, ``name=value`` apart from spaces.

        >>> Health(received=3).line().split()[0]
        'received=3'
        """
        dropped = ",".join(f"{reason}:{count}" for reason, count in sorted(self.dropped.items())) or "0"
        lags = ",".join(f"{partition}:{lag}" for partition, lag in sorted(self.lag.items()))
        return (
            f"received={self.received} applied={self.applied} sent={self.sent} dropped={dropped} "
            f"filled={self.filled} lost={self.lost} snapshots={self.snapshots} "
            f"recoveries={self.recoveries} errors={self.errors} lag={sum(self.lag.values())} "
            f"partitions={len(self.lag)} by_partition={lags or '-'}"
        )
