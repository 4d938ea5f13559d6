"""A configuration in the log is data, whoever wrote it: it has no class imported or called."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from driftline import config, events
from driftline.config import AggregateSpec, PipelineConfig
from driftline.records import Output, Record
from driftline.streams import extensions
from driftline.streams.attempts import PartitionState
from driftline.streams.pipeline import Pipeline


def configured(*aggregates: AggregateSpec) -> tuple[PartitionState, list[Output]]:
    body = config.encode(PipelineConfig(aggregates=list(aggregates)))
    change = events.ConfigChanged(worker="w", time_us=0, digest=config.digest(body), body=msgspec.Raw(body))
    pipeline = Pipeline()
    state = pipeline.fresh("uuid", 0)
    return state, pipeline.step(state, [Record(0, 0, 0, events.encode(change))])


def refused(*aggregates: AggregateSpec) -> bool:
    state, outputs = configured(*aggregates)
    assert all(output.topic == "dead-letter" for output in outputs)
    return state.config_refused is not None


def test_a_class_from_the_log_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a module that is there, nor one that is loaded already, nor one of ours with other settings."""
    monkeypatch.setattr(extensions, "_trusted", set())
    mark = tmp_path / "called"
    (tmp_path / "trap.py").write_text(f"open({str(mark)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    for target, settings in (
        ("trap:anything", {}),
        ("os:system", {"command": f"touch {mark}"}),
        ("driftline.streams.named_aggregates:TrimmedMean", {"part": 0.2}),
    ):
        assert refused(AggregateSpec(name="x", target=target, metrics=["m"], settings=settings))
    assert "trap" not in sys.modules
    assert not mark.exists()


def test_what_the_workers_own_settings_name_is_used_and_only_with_their_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target alone is not enough: settings are what a class is called with."""
    monkeypatch.setattr(extensions, "_trusted", set())
    ours = AggregateSpec(
        name="x",
        target="driftline.streams.named_aggregates:TrimmedMean",
        metrics=["m"],
        settings={"part": 0.2},
    )
    extensions.trust(PipelineConfig(aggregates=[ours]))
    assert not refused(ours)
    assert not refused(msgspec.structs.replace(ours, name="y", metrics=["n"]))
    assert refused(msgspec.structs.replace(ours, settings={"part": 0.3}))
    assert refused(msgspec.structs.replace(ours, settings={}))
