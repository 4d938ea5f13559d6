"""A pipeline of real processes on a real Kafka whose processes are killed, paused and restarted at random.

    plan      what to do: how many faults, of which kinds, at which rate
    schedule  which faults, in which order, of a seed
    world     the processes of the four roles and the ranks, as processes
    ranks     the raw ranks: many processes of runs, small frames, values that can be computed again
    trainer   a rank that uses the SDK and saves checkpoints
    suites    the evaluation suite, a small model on the CPU
    brokers   brokers of a cluster, struck as well
    progress  how far the workers, the sinks and the evaluations are, as anyone can see it
    loop      strikes, waits until all works again, strikes again
    logs      reading topics whole, and dropping what was sent again as readers do
    judge     compares topics and tables with what the ranks sent and with the pure cores and the naive oracle

``run(plan)`` does it all. Used by ``benchmarks/faults.py`` and ``tests/faults``.
"""

from __future__ import annotations

from .loop import run
from .plan import Plan, Report

__all__ = ["Plan", "Report", "run"]
