"""Names and partitions of topics."""

import random

from kafka.partitioner.default import murmur2

from driftline import topics


def test_partition_is_that_of_kafkas_default_partitioner() -> None:
    chance = random.Random(7)
    for _ in range(500):
        run = "".join(chance.choice("abz09é界") for _ in range(chance.randrange(1, 40)))
        assert topics.partition_of(run, 12) == (murmur2(run.encode()) & 0x7FFFFFFF) % 12
