"""A replay that is interrupted anywhere goes on, and gives what one that was not interrupted gives."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.config import AggregateSpec, PipelineConfig
from driftline.errors import BadData, SettingsError, Unavailable
from driftline.records import Output, OutputId
from driftline.replay import checkpoint, playing
from driftline.replay.checkpoint import Folder
from driftline.replay.outputs import Outputs
from driftline.replay.playing import Keep
from driftline.replay.proof import Proof, compared_columns, prove
from driftline.storage.lake import Lake
from driftline.storage.recorded import source as replay_source
from driftline.storage.recorded.compare import OUTPUTS, Reach, Stored
from driftline.storage.recorded.source import TableLog
from driftline.streams import extensions

Store = Callable[..., Path]
TOLD = {"root": "here"}


class Killed(BaseException):
    """The process ends here."""


def proven(root: Path, folder: Path | None = None, **how: Any) -> Proof:
    if folder is None:
        return prove(TableLog(root), Stored(root), **how)
    with Folder.held(folder, TOLD) as held:
        return prove(TableLog(root), Stored(root), folder=held, keep=Keep(0.0), **how)


def said(proof: Proof) -> dict[str, Any]:
    """All that a proof says, digests as texts."""
    plain = {field.name: getattr(proof, field.name) for field in dataclasses.fields(proof)}
    plain["compared"] = [
        (one.table, one.run, str(one.stored), str(one.replayed), one.identical) for one in proof.compared
    ]
    plain["differences"] = [repr(one) for one in proof.differences]  # NaN is not itself
    return plain


@pytest.fixture(scope="module")
def whole_tables(tmp_path_factory: pytest.TempPathFactory, log: Any, store: Store) -> Path:
    """Two partitions, a lost alert."""
    one, other = log.odd(), log(partition=1, uuid="other")
    other.train("c", range(40))
    other.end("c")
    lost: list[Any] = []

    def first_alert(output: Any) -> bool:
        if output.topic == "alerts" and not lost:
            lost.append(output.id)
        return output.id in lost

    return store(tmp_path_factory.mktemp("resume") / "data", one, other, skip=first_alert)


@pytest.fixture(scope="module")
def wanted(whole_tables: Path) -> dict[str, Any]:
    proof = proven(whole_tables)
    assert not proof.identical
    return said(proof)


@pytest.fixture
def tables(whole_tables: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Read in small stretches."""
    monkeypatch.setattr(replay_source, "_SLICE", 60)
    return whole_tables


def test_a_replay_that_is_killed_again_and_again_gives_what_one_in_one_go_gives(
    tables: Path, wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it reads, before and after it keeps its progress, and while it compares."""
    chance, kills = random.Random(3), 0
    real = checkpoint.os.replace
    left = 0

    def maybe(*_: Any) -> None:
        nonlocal left, kills
        left -= 1
        if left == 0:
            kills += 1
            raise Killed

    def replaced(source: Any, target: Any) -> None:
        maybe()
        real(source, target)
        maybe()

    monkeypatch.setattr(checkpoint.os, "replace", replaced)
    monkeypatch.setattr(Stored, "differences", _then(Stored.differences, maybe))
    for _ in range(200):
        left = chance.randrange(2, 25)
        try:
            found = proven(tables, tmp_path / "kept", tell=maybe)
            break
        except Killed:
            assert (tmp_path / "kept").exists()
    assert kills > 4
    assert said(found) == wanted
    assert not (tmp_path / "kept").exists(), "nothing is left behind"


def test_evaluations_that_were_asked_for_before_it_was_put_down_are_known_after(tmp_path: Path) -> None:
    """What was requested before an interruption still counts as asked for, in the order of the log."""
    asked = [
        events.EvalRequested(
            id=f"u/0/{at}/0",
            request=f"q{at}",
            run="a",
            attempt=0,
            suite=events.SuiteRef(name="sums", target="m:a"),
            checkpoint=events.Checkpoint(digest="d", uri="/c", format="safetensors", step=at),
            reason="steps",
            time_us=at,
        )
        for at in range(3)
    ]
    columns = {name: compared_columns(name, False) for name in OUTPUTS}
    first, then = (Outputs(tmp_path, [], columns) for _ in range(2))
    made = [Output("evals", "a", events.encode(one), OutputId.parse(one.id)) for one in asked]
    first.add(made, Reach("u", 0, 1, 9), cut=9)
    then.take_up(first.put_down())
    assert (then.earlier, then.requests) == (asked[:1], asked[1:])


def _then(method: Any, after: Callable[..., None]) -> Any:
    def called(*arguments: Any, **named: Any) -> Any:
        found = method(*arguments, **named)
        after()
        return found

    return called


def test_what_comes_to_the_tables_meanwhile_is_not_looked_at(
    log: Any, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay goes on with what was there when it began, though files are merged and rows come."""
    monkeypatch.setattr(replay_source, "_SLICE", 60)
    one = log()
    one.train("a", range(60))
    root = store(tmp_path / "data", one)
    wanted = said(proven(root))
    count = 0

    def third(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise Killed

    with pytest.raises(Killed):
        proven(root, tmp_path / "kept", tell=third)
    other = log(partition=1, uuid="other")
    other.train("b", range(20))
    store(root, other)
    for name in ("samples", "log", "windows"):
        Lake(root).compact(name, at_least=1)
    assert said(proven(root, tmp_path / "kept")) == wanted


def _play(root: Path, folder: Path, slow_s: float) -> None:
    replay_source._SLICE = 60
    proven(root, folder, tell=lambda *_: time.sleep(slow_s))


def test_a_process_that_is_killed_leaves_what_another_goes_on_from(
    tables: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    process = multiprocessing.get_context("spawn").Process(target=_play, args=(tables, kept, 0.3))
    process.start()
    assert process.pid is not None
    deadline = time.monotonic() + 300
    while not list(kept.glob("part-0.state")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(SettingsError, match="another replay works in this folder"):
        proven(tables, kept)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    samples: list[int] = []
    assert said(proven(tables, kept, tell=lambda some, _: samples.append(some))) == wanted
    assert sum(samples) == wanted["samples"], "progress counts what was done before"


def test_partitions_that_are_played_by_several_processes_give_what_one_gives(
    tables: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    assert said(proven(tables, tmp_path / "kept", jobs=2)) == wanted


def test_processes_import_the_classes_that_the_settings_of_the_command_name(
    log: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they refused the configuration of the log and proved what one process does not."""
    target = "driftline.streams.named_aggregates:GeometricMean"
    settings = PipelineConfig(aggregates=[AggregateSpec(name="g", target=target, metrics=["loss"])])
    monkeypatch.setattr(extensions, "_trusted", set())
    extensions.trust(settings)
    logs = log(settings=settings), log(partition=1, uuid="other", settings=settings)
    for one, run in zip(logs, ("a", "b"), strict=True):
        one.train(run, range(40))
        one.end(run)
    root = store(tmp_path / "data", *logs)
    assert proven(root).identical
    several = proven(root, jobs=2)
    assert several.identical
    assert not several.notes


def _end(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _refuse(*_: Any) -> None:
    raise SettingsError("storage.root", "s3://x", "name another")


@pytest.mark.parametrize(
    ("does", "raised", "says"),
    [(_end, Unavailable, "fewer --jobs"), (_refuse, SettingsError, "storage.root: 's3://x' is not usable")],
)
def test_what_ends_one_of_several_processes_is_said_in_words(
    tables: Path, monkeypatch: pytest.MonkeyPatch, does: Any, raised: type[Exception], says: str
) -> None:
    monkeypatch.setattr(playing, "_play_elsewhere", does)
    with pytest.raises(raised, match=says):
        proven(tables, jobs=2)


def test_a_folder_whose_first_file_was_half_written_is_used_and_emptied(tables: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / ".replay.json.new").write_text("{")
    proven(tables, kept)
    assert not kept.exists()


def test_progress_of_another_replay_or_of_a_broken_file_is_refused(tables: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def stop(*_: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        proven(tables, kept, tell=stop)
    with (
        pytest.raises(SettingsError, match="root was 'here', is 'there'"),
        Folder.held(kept, {"root": "there"}),
    ):
        pass
    count = 0

    def later(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise Killed

    with pytest.raises(Killed):
        proven(tables, kept, tell=later)
    state = kept / "part-0.state"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    with pytest.raises(BadData, match="is broken: remove"):
        proven(tables, kept)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(SettingsError, match="holds something else"), Folder.held(other, TOLD):
        pass
    assert (other / "thesis.tex").read_text() == "mine"


def test_what_retention_took_meanwhile_is_said(tables: Path, tmp_path: Path) -> None:
    def stop(*_: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        proven(tables, tmp_path / "kept", tell=stop)
    mine = Path(shutil.copytree(tables, tmp_path / "mine"))
    Lake(mine).delete("log", '"offset" < 400 AND "partition" = 0')
    with pytest.raises(BadData, match="gone by now"):
        proven(mine, tmp_path / "kept")
