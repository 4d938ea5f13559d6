"""The topics, what keys them, and which partition a run lives in.

Every topic carries a configurable prefix. Topics keyed by run all have the *same* partition count, and every
writer names the partition explicitly (:func:`partition_of`), so that a run never moves and an output of
partition ``p`` of ``telemetry`` lands in partition ``p`` of ``windows``, ``facts`` and ``alerts``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

DEFAULT_PREFIX = "driftline."
DEFAULT_PARTITIONS = 8
MAX_FRAME_BYTES = 512 * 1024

TopicName = Literal[
    "telemetry",
    "windows",
    "facts",
    "alerts",
    "evals",
    "assignments",
    "eval-items",
    "control",
    "state",
    "dead-letter",
]


class TopicSpec(NamedTuple):
    """How a topic must be made; checked at start.

    ``single``: one partition, else the configured count. ``append_time``: the broker stamps records
    (``message.timestamp.type=LogAppendTime``), since these topics' record times are a run's "now".
    """

    name: TopicName
    carries: str
    single: bool = False
    compacted: bool = False
    append_time: bool = False


SPECS: tuple[TopicSpec, ...] = (
    TopicSpec("telemetry", "the one ordered input log of each run", append_time=True),
    TopicSpec("windows", "aggregates of closed windows"),
    TopicSpec("facts", "what the pipeline concluded about the run itself"),
    TopicSpec("alerts", "alerts opened, updated, resolved"),
    TopicSpec("evals", "evaluation requests, evaluators, raw results", single=True, append_time=True),
    TopicSpec("assignments", "leases: this request to that evaluator", single=True),
    TopicSpec("eval-items", "outcomes per evaluated item"),
    TopicSpec("control", "suggestions and commands for trainers"),
    TopicSpec("state", "snapshots of the stream workers", compacted=True),
    TopicSpec("dead-letter", "undecodable or oversized records, with the reason", single=True),
)


class Topics:
    """Full topic names under one prefix.

    >>> Topics("dev.")["eval-items"]
    'dev.eval-items'
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = prefix

    def __getitem__(self, name: TopicName) -> str:
        return self.prefix + name

    def short(self, full: str) -> str:
        """The name without its prefix."""
        return full.removeprefix(self.prefix)


def partition_of(run: str, partitions: int) -> int:
    """The partition of a run: Kafka's own default for this key (murmur2), so that any client agrees.

    >>> partition_of("01j00000000000000000000000", 8)
    0
    """
    return (_murmur2(run.encode()) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Kafka's MurmurHash2 (32 bits, seed 0x9747B28C). Ours, since importing kafka-python costs 0.5 s."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
