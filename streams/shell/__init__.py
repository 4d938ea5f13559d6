"""Runs a pure :class:`~driftline.streams.core.Core` on Kafka through Faust, with exactly-once effects.

    faust_app      the Faust app and what of Faust must be switched off
    cursor         a partition's state and its next offset (pure)
    snapshots      state as chunks and a manifest on the ``state`` topic (pure)
    seams          what the parts below need from outside, as protocols (Kafka here, memory in the simulation)
    recovery       where a partition goes on: a snapshot, or the beginning of the log
    log_reader     reads ranges of a partition without a consumer group
    outbox         sends outputs in order and knows what was delivered
    partition      one assigned partition: recover, process, snapshot
    assignments    the partitions of a worker, started and retired as the group says
    shell          the parts put together, for as long as the process lives

The rules and why they hold: docs/design/002-exactly-once-shell.md.
"""
