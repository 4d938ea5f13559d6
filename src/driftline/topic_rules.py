"""What the topics must be like, and what to do about those that are not: the same words for all who look.

A role stops where a topic does not fit (:mod:`driftline.admin`); a trainer goes on training. It may still
send where the topic is merely not what *its* settings say: if all topics keyed by run have the same count,
someone made them so, and the roles of that pipeline have the same in their settings. A topic that is alone
with its count was made by the broker or by hand; the remedy is to delete it, so nothing is sent there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from driftline.errors import SettingsError
from driftline.topics import SPECS, TopicSpec

Count = int | Literal["hidden"] | None
"""Partitions of a topic; None: there is no such topic; "hidden": we may not know."""


class Sending(NamedTuple):
    """Whether records may be sent to a topic, and what is to be said about it."""

    allowed: bool
    remark: str = ""


def check_partitions(name: str, spec: TopicSpec, found: int, wanted: int) -> None:
    """Raises SettingsError if the topic of this full name has another partition count than it must have."""
    if spec.single:
        wanted = 1
    if found == wanted:
        return
    remedy = _remake(name, wanted)
    if not spec.single:
        remedy = (
            f"the settings say {wanted}: set kafka.partitions (DRIFTLINE_KAFKA__PARTITIONS) to {found} if "
            f"all topics keyed by run have as many, else {remedy}"
        )
    raise SettingsError(f"topic {name}", f"{found} partitions", remedy)


def may_send(topic: str, found: int, *, wanted: int, others: Mapping[str, Count]) -> Sending:
    """Whether a trainer may send to ``telemetry`` (``topic``, its full name), which has ``found`` partitions.

    ``others``: the counts of the other topics keyed by run, by full name; asked for only if it is needed.

    >>> may_send("x.telemetry", 8, wanted=8, others={})
    Sending(allowed=True, remark='')
    >>> may_send("x.telemetry", 3, wanted=8, others={"x.windows": 3}).allowed
    True
    >>> may_send("x.telemetry", 1, wanted=8, others={"x.windows": None}).allowed
    False
    """
    if found == wanted:
        return Sending(True)
    odd = [name for name, count in others.items() if count not in (found, "hidden")]
    say = f"the settings say {wanted}: set kafka.partitions (DRIFTLINE_KAFKA__PARTITIONS) to {found}"
    if not odd:
        return Sending(
            True, f"topic {topic} has {found} partitions, {say}; samples are sent there all the same"
        )
    count = others[odd[0]]
    has = f"has {count}" if count else "is not there"
    say += f" if all topics keyed by run have as many ({odd[0]} {has}), else {_remake(topic, wanted)}"
    return Sending(False, say)


def keyed_by_run(prefix: str) -> list[str]:
    """Full names of the topics that have the configured partition count."""
    return [prefix + spec.name for spec in SPECS if not spec.single]


def wrong_time_stamps(name: str, value: str | None) -> SettingsError:
    """What to say of a topic whose records do not get the broker's time."""
    return SettingsError(
        f"topic {name}", f"message.timestamp.type={value}", f"set it with: {_append_time(name)}"
    )


def no_append_time(name: str) -> str:
    """The same to a trainer, whose samples go on."""
    return (
        f"topic {name} keeps the senders' times, not the broker's, so no role works on it: "
        f"{_append_time(name)}; samples are sent"
    )


def few_copies(name: str, found: int, wanted: int) -> str:
    """What to say of a topic with fewer copies than the settings ask for."""
    return (
        f"topic {name} has {found} of {wanted} copies (kafka.replication): what their brokers lose is lost; "
        "give it more with kafka-reassign-partitions.sh; samples are sent"
    )


def _append_time(name: str) -> str:
    return (
        f"kafka-configs.sh --alter --entity-type topics --entity-name {name} "
        "--add-config message.timestamp.type=LogAppendTime"
    )


def _remake(name: str, partitions: int) -> str:
    return (
        f"delete the topic and start again, driftline makes it with {partitions} "
        f"(kafka-topics.sh --delete --topic {name}); switch off auto.create.topics.enable at the broker"
    )
