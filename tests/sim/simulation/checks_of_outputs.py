"""Outputs of the pure cores: what the recorded log gives, each once, in order, with one content."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from driftline import window_rows
from driftline.config import PipelineConfig
from driftline.records import OutputId
from driftline.streams.shell.partition import destination
from driftline.topics import TopicName

from .findings import FEW, Findings, Judged, Problems, few, id_of

OUTPUT_TOPICS: tuple[TopicName, ...] = ("windows", "facts", "alerts", "evals", "assignments", "telemetry")


class Lane(NamedTuple):
    """From an input partition to an output partition: within it ids only grow for those who drop repeats."""

    uuid: str
    partition: int
    topic: TopicName
    to: int


def outputs_are_the_oracles(found: Findings) -> Problems:
    """What readers keep of each input partition is what the pure core gives over the recorded log: no id with
    two contents, none that should not be, none missing, in order."""
    kept: dict[Lane, list[tuple[OutputId, bytes | None]]] = {}
    for topic in OUTPUT_TOPICS:
        for place, record in found.recorded(topic):
            made = id_of(topic, record.value)
            if made is None:
                continue
            lane = kept.setdefault(Lane(made.topic_uuid, made.partition, topic, place.partition), [])
            judged = found.judged.get((made.topic_uuid, made.partition))
            if judged is None:
                yield f"{topic} {made}: of no input that there ever was"
            if not lane or made > lane[-1][0]:
                lane.append((made, record.value))
    for judged in (*found.telemetry, *found.evals):
        yield from _compare(found, judged, kept)


def _compare(found: Findings, judged: Judged, kept: dict[Lane, list[Any]]) -> Problems:
    contents = {output.id: output.value for output in judged.outputs}
    wanted: dict[Lane, list[OutputId]] = {}
    for output in judged.outputs:
        if output.topic in OUTPUT_TOPICS:
            to = destination(
                output, judged.place.topic, judged.place.partition, found.world.broker.partitions
            )
            wanted.setdefault(Lane(judged.place.uuid, judged.place.partition, output.topic, to), []).append(
                output.id
            )
    given = {lane: pairs for lane, pairs in kept.items() if lane[:2] == judged.place[1:]}
    if given and not judged.configured:
        yield f"{judged.place}: outputs of a log without a configuration"
    for lane in sorted({*wanted, *given}):
        for made, value in given.get(lane, []):
            if made not in contents:
                yield f"{lane.topic} {made}: the recorded log does not give it"
                break
            if contents[made] != value:
                yield f"{lane.topic} {made}: two contents"
                break
        ids = [made for made, _ in given.get(lane, [])]
        right = wanted.get(lane, [])
        if ids != right[: len(ids)]:
            lacking = sorted(set(right[: len(ids)]) - set(ids))[:FEW]
            yield f"{lane}: readers missed {', '.join(map(str, lacking))}"
        owed = [made for made in right if made.offset < judged.reached]
        if judged.current and len(ids) < len(owed):
            yield f"{lane}: {len(owed) - len(ids)} outputs are missing at the end"


def repeats_are_equal(found: Findings) -> Problems:
    """An output that was sent again has the content that it had before."""
    first: dict[tuple[str, OutputId], bytes | None] = {}
    for topic in OUTPUT_TOPICS:
        for _, record in found.recorded(topic):
            made = id_of(topic, record.value)
            if made is not None and first.setdefault((topic, made), record.value) != record.value:
                yield f"{topic} {made} was sent with two contents"


def all_was_worked_on(found: Findings) -> Problems:
    """At rest nothing but ticks is left to do in any input partition."""
    for judged in (*found.telemetry, *found.evals):
        if not judged.current:
            continue
        left = [record for record in judged.log if record.offset >= judged.reached]
        rest = [r for r in left if b'"kind":"tick"' not in (r.value or b"")[:40]]
        if judged.place.topic == "evals":
            rest = [r for r in rest if b'"kind":"evaluator_' not in (r.value or b"")[:40]]
        if rest:
            yield f"{judged.place}: {len(rest)} records from offset {rest[0].offset} on were never worked on"


def tables_have_the_outputs(found: Findings) -> Problems:
    """``windows``, ``facts`` and ``alerts`` have the rows of each output once."""
    for topic in ("windows", "facts", "alerts"):
        expected: Counter[tuple[Any, ...]] = Counter()
        known: set[OutputId] = set()
        for _, record in found.recorded(topic):  # type: ignore[arg-type]
            made = id_of(topic, record.value)  # type: ignore[arg-type]
            if made is None or made in known:
                continue
            known.add(made)
            rows = window_rows.decode(record.value or b"")[1].num_rows if topic == "windows" else 1
            expected[tuple(made)] += rows
        table = found.world.tables.rows(topic)  # type: ignore[arg-type]
        columns = ("topic_uuid", "partition", "offset", "ordinal")
        stored = Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))
        yield from few(f"is not in {topic}", (expected - stored).elements())
        yield from few(f"is in {topic} too often", (stored - expected).elements())


def windows_agree(found: Findings) -> Problems:
    """The pure pipeline's windows are those of the naive oracle (slow: some seeds only)."""
    oracle = naive()
    for judged in found.telemetry:
        pipeline = found.world.settings.pipeline if judged.configured else PipelineConfig()
        wanted = oracle.run(judged.log, pipeline)
        yield from oracle.differences(wanted, judged.outputs)[:FEW]


def naive() -> ModuleType:
    """The module of the naive oracle, which belongs to no package."""
    name = "driftline_tests_naive"
    if name not in sys.modules:
        path = Path(__file__).parents[2] / "naive.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
