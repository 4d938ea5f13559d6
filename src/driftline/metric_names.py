"""The metric names that driftline knows: unit, reduction, group, and the short names people write for them.

A metric may have any name; these are the ones with a meaning. Driftline's units are fixed (seconds, bytes,
percent 0 to 100, fractions 0 to 1), so that ``latency: 500ms`` in the settings means 0.5 and
``gpu_utilization: 95%`` means 95. ``docs/settings.md`` shows the same table.

    group         who measures it
    cpu, memory,
    gpu, disk,
    network       the SDK, on local rank 0 (``metrics: - system: [...]`` selects them by group)
    application   the training code, by ``run.log({name: value})``
    custom        the training code too: names of a user's own that are known here for their unit
    span          the SDK, by ``with run.span("forward")``: seconds, named ``span/forward``
"""

from __future__ import annotations

import difflib
from typing import Literal, NamedTuple

Unit = Literal["%", "fraction", "s", "bytes", "bytes/s", "W", "°C", "samples/s", "tokens/s", "tokens", ""]
Reduction = Literal["mean", "sum", "max", "last"]
Group = Literal["cpu", "memory", "gpu", "disk", "network", "application", "custom", "span"]
SYSTEM_GROUPS: tuple[Group, ...] = ("cpu", "memory", "gpu", "network", "disk")
SPAN_PREFIX = "span/"


class MetricName(NamedTuple):
    """One known metric."""

    name: str
    unit: Unit
    reduction: Reduction
    """How the values of several ranks become one number for people."""
    group: Group
    says: str
    aliases: tuple[str, ...] = ()
    bad_when: Literal["high", "low"] = "high"
    """The side of a threshold on which an alert opens."""


METRIC_NAMES: tuple[MetricName, ...] = (
    MetricName(
        "cpu_utilization", "%", "mean", "cpu", "all cores of the host", ("cpu", "cpu_usage", "cpu_util")
    ),
    MetricName(
        "memory_utilization", "%", "mean", "memory", "of the host's memory", ("memory", "memory_usage", "mem")
    ),
    MetricName("memory_used", "bytes", "sum", "memory", "used on the host"),
    MetricName(
        "process_memory", "bytes", "sum", "memory", "resident memory of the training process", ("rss",)
    ),
    MetricName(
        "gpu_utilization", "%", "mean", "gpu", "time with a kernel running", ("gpu", "gpu_usage", "gpu_util")
    ),
    MetricName("gpu_memory_used", "bytes", "sum", "gpu", "used on the device", ("gpu_memory",)),
    MetricName("gpu_memory_utilization", "%", "mean", "gpu", "used part of the device's memory"),
    MetricName("gpu_power", "W", "sum", "gpu", "drawn by the device"),
    MetricName("gpu_temperature", "°C", "max", "gpu", "of the device"),
    MetricName("disk_read", "bytes/s", "sum", "disk", "read by the host", ("disk_reads",)),
    MetricName("disk_written", "bytes/s", "sum", "disk", "written by the host", ("disk_writes",)),
    MetricName("network_sent", "bytes/s", "sum", "network", "sent by the host"),
    MetricName("network_received", "bytes/s", "sum", "network", "received by the host"),
    MetricName("throughput", "samples/s", "sum", "application", "training samples in a second", (), "low"),
    MetricName("tokens_per_second", "tokens/s", "sum", "application", "tokens in a second", ("tps",), "low"),
    MetricName("latency", "s", "mean", "application", "of one step or request", ("step_latency",)),
    MetricName("step_time", "s", "mean", "application", "of one training step", ("iteration_time",)),
    MetricName("loss", "", "mean", "application", "the loss that is trained", ("train_loss",)),
    MetricName("accuracy", "fraction", "mean", "application", "right answers, 0 to 1", ("acc",), "low"),
    MetricName("exact_match", "fraction", "mean", "application", "answers equal to the expected", (), "low"),
    MetricName("reward", "", "mean", "application", "mean reward", (), "low"),
    MetricName("response_length", "tokens", "mean", "application", "length of a generated answer"),
    MetricName("perplexity", "", "mean", "application", "exp of the mean loss per token"),
    MetricName("kl", "", "mean", "application", "divergence from the reference policy"),
    MetricName("entropy", "", "mean", "application", "of the policy", (), "low"),
    MetricName("grad_norm", "", "mean", "application", "norm of the gradient", ("gradient_norm",)),
    MetricName("learning_rate", "", "last", "application", "as the optimizer uses it", ("lr",)),
    MetricName("tokens", "tokens", "sum", "application", "tokens of a batch", (), "low"),
    MetricName("gradient_update_time", "s", "mean", "custom", "optimizer step"),
    MetricName("data_loading_time", "s", "mean", "custom", "waiting for the next batch"),
    MetricName("forward_time", "s", "mean", "custom", "forward pass"),
    MetricName("backward_time", "s", "mean", "custom", "backward pass"),
    MetricName("communication_time", "s", "mean", "custom", "waiting for other ranks"),
)

_BY_NAME = {entry.name: entry for entry in METRIC_NAMES}
_ALIASES = {alias: entry for entry in METRIC_NAMES for alias in entry.aliases}


def known(name: str) -> MetricName | None:
    """The entry of a name or of one of its short names; None for a metric of the user's own.

    >>> known("cpu").name, known("span/forward").unit, known("my_metric")
    ('cpu_utilization', 's', None)
    """
    if name.startswith(SPAN_PREFIX):
        return MetricName(name, "s", "mean", "span", "one span of a step")
    return _BY_NAME.get(name) or _ALIASES.get(name)


def canonical(name: str) -> str:
    """The name under which the metric is stored: short names become long, all others stay as they are.

    >>> canonical("gpu"), canonical("Gpu")
    ('gpu_utilization', 'Gpu')
    """
    entry = known(name)
    return entry.name if entry else name


def close_to(name: str, names: list[str] | tuple[str, ...]) -> str:
    """``, did you mean 'x'?`` when something close is among ``names``, else nothing.

    >>> close_to("retension", ["retention", "root"])
    ", did you mean 'retention'?"
    """
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f", did you mean {found[0]!r}?" if found else ""


SHOWN_FIRST = (
    "loss",
    "accuracy",
    "exact_match",
    "reward",
    "response_length",
    "grad_norm",
    "learning_rate",
    "step_time",
)
"""Metrics that are shown before others where nobody names any."""
