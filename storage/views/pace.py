"""Under which names trainers log how fast they are, and what each number means. Data.

Read in the sources of transformers and TRL, Lightning's ThroughputMonitor, Composer's SpeedMonitor, OLMo,
torchtitan, verl and AReaL (November 2026); a leading ``train/`` or ``train|`` is allowed for all.
"""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """``kind``: a ``rate`` (of ``unit`` in a second), a ``count`` (of a step), a ``total`` (so far) or the
    ``seconds`` of a step. ``over`` ranks: ``sum``; ``whole`` (each says the same of the whole job);
    ``device`` (of one device: times all ranks)."""

    metric: str
    kind: str
    unit: str
    over: str


SOURCES = (
    Source("tokens_per_second", "rate", "tokens/s", "sum"),
    Source("throughput", "rate", "samples/s", "sum"),
    Source("tps", "rate", "tokens/s", "sum"),
    Source("train_tokens_per_second", "rate", "tokens/s", "whole"),
    Source("throughput/tokens_per_sec", "rate", "tokens/s", "whole"),
    Source("throughput/device/tokens_per_sec", "rate", "tokens/s", "device"),
    Source("throughput/device/tokens_per_second", "rate", "tokens/s", "device"),
    Source("throughput(tps)", "rate", "tokens/s", "device"),
    Source("wps", "rate", "tokens/s", "device"),
    Source("perf/throughput", "rate", "tokens/s", "device"),
    Source("tok_per_sec", "rate", "tokens/s", "whole"),
    Source("global/items_per_sec", "rate", "tokens/s", "whole"),
    Source("device/items_per_sec", "rate", "tokens/s", "device"),
    Source("samples_per_second", "rate", "samples/s", "sum"),
    Source("throughput/samples_per_sec", "rate", "samples/s", "whole"),
    Source("throughput/device/samples_per_sec", "rate", "samples/s", "device"),
    Source("global/samples_per_sec", "rate", "samples/s", "whole"),
    Source("device/samples_per_sec", "rate", "samples/s", "device"),
    Source("tokens", "count", "tokens/s", "sum"),
    Source("perf/total_num_tokens", "count", "tokens/s", "whole"),
    Source("sft/n_tokens", "count", "tokens/s", "whole"),
    Source("num_input_tokens_seen", "total", "tokens/s", "whole"),
    Source("num_tokens", "total", "tokens/s", "whole"),
    Source("total_tokens_passed", "total", "tokens/s", "whole"),
    Source("throughput/total_tokens", "total", "tokens/s", "whole"),
    Source("samples", "count", "samples/s", "sum"),
    Source("batch_size", "count", "samples/s", "sum"),
    Source("train_samples_per_second", "rate", "samples/s", "whole"),
    Source("train_steps_per_second", "rate", "steps/s", "whole"),
    Source("global/batches_per_sec", "rate", "steps/s", "whole"),
    Source("device/batches_per_sec", "rate", "steps/s", "whole"),
    Source("throughput/device/batches_per_sec", "rate", "steps/s", "whole"),
    Source("step_time", "seconds", "steps/s", "whole"),
    Source("iteration_time", "seconds", "steps/s", "whole"),
    Source("perf/time_per_step", "seconds", "steps/s", "whole"),
    Source("timing_s/step", "seconds", "steps/s", "whole"),
    Source("time_metrics/end_to_end(s)", "seconds", "steps/s", "whole"),
    Source("dt", "seconds", "steps/s", "whole"),
    Source("span/step", "seconds", "steps/s", "whole"),
    Source("span/train_step", "seconds", "steps/s", "whole"),
    Source("span/iteration", "seconds", "steps/s", "whole"),
)
"""In the order in which they are preferred."""
PREFIXES = ("", "train/", "train|")

NAMED = ", ".join(
    f"('{prefix}{source.metric}', '{source.kind}', '{source.unit}', '{source.over}', {at})"
    for at, source in enumerate(SOURCES)
    for prefix in PREFIXES
)
"""Rows of (metric, kind, unit, over, preference) for ``VALUES``."""
METRICS = ", ".join(f"'{prefix}{source.metric}'" for source in SOURCES for prefix in PREFIXES)
