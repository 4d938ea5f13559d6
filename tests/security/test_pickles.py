"""No part of Driftline unpickles a checkpoint: there is no flag that would make it do so either."""

from __future__ import annotations

import ast
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import driftline
from driftline.clock import SystemClock
from driftline.evaluator.checkpoints import look
from driftline.evaluator.job import Runner, SuiteShelf
from driftline.events import Checkpoint, FileEntry, SuiteRef
from driftline.producers.checkpoint import describe
from driftline.producers.transport import MemoryTransport
from driftline.settings import EvaluatorSettings, SdkSettings, Settings

ROOT = Path(__file__).parents[2]
BANNED = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch.load",
    "torch.distributed.checkpoint", "torch.serialization", "yaml.load_all", "eval", "exec", "os.system",
}  # fmt: skip


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def bombed_torch(folder: Path, mark: Path) -> None:
    torch.save({"weights": Bomb(mark)}, folder / "model.pt")


def bombed_old_torch(folder: Path, mark: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(mark)))


def bombed_dcp(folder: Path, mark: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Bomb(mark)))
    (folder / "__0_0.distcp").write_bytes(pickle.dumps(Bomb(mark)))


def bomb_named_safetensors(folder: Path, mark: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"weights": Bomb(mark)}, buffer)
    (folder / "model.safetensors").write_bytes(buffer.getvalue())


def bomb_behind_an_index(folder: Path, mark: Path) -> None:
    bombed_torch(folder, mark)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"weights": "model.pt"}}')


Make = Callable[[Path, Path], None]
MAKES: list[Make] = [
    bombed_torch,
    bombed_old_torch,
    bombed_dcp,
    bomb_named_safetensors,
    bomb_behind_an_index,
]


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("told", [None, "safetensors", "torch", "dcp"])
def test_a_malicious_checkpoint_is_announced_and_refused_without_being_unpickled(
    tmp_path: Path, make: Make, told: str | None
) -> None:
    folder, mark = tmp_path / "step-1", tmp_path / "unpickled"
    folder.mkdir()
    make(folder, mark)
    way = MemoryTransport()
    settings = Settings(sdk=SdkSettings(system=(), flush_us=5_000))
    with driftline.init(settings=settings, transport=way) as run:
        run.checkpoint(folder, step=1, format=told)
        assert run.flush(30)
    assert run.counters()["checkpoints_saved"] == 1

    suite = SuiteRef(name="sums", target="driftline.demo.suite:addition", settings={"count": 2})
    waits = EvaluatorSettings(wait_us=0, poll_us=1_000)
    runner = Runner(waits, SuiteShelf([suite]), device="cpu", clock=SystemClock())
    checkpoint = describe(str(folder), step=1, format=told)
    job = runner.run(suite, checkpoint, progress=lambda *_: None, sleep=lambda _: None)
    assert job.outcome.status in ("unreadable", "incomplete")
    assert job.outcome.metrics == []
    assert not mark.exists()


def test_the_bomb_does_go_off_where_somebody_unpickles_it(tmp_path: Path) -> None:
    bombed_torch(tmp_path, tmp_path / "unpickled")
    torch.load(tmp_path / "model.pt", weights_only=False)
    assert (tmp_path / "unpickled").exists()


def names(tree: ast.AST) -> set[str]:
    """Dotted names that a module imports or calls."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
    return found


def test_no_module_imports_or_calls_what_runs_code_from_data() -> None:
    files = [
        path
        for folder in ("src/driftline", "producers", "streams", "evaluator", "storage")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 80
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in names(ast.parse(path.read_text()))
        if any(name == banned or name.startswith(f"{banned}.") for banned in BANNED)
    }
    assert wrong == set()


@pytest.mark.parametrize("kind", ["in the folder", "as the checkpoint", "as the weights"])
def test_a_pipe_in_place_of_a_file_holds_nobody_up(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """To open one waits for whoever writes into it: for ever."""
    folder = tmp_path / "step-1"
    folder.mkdir()
    pipe = tmp_path / "x.safetensors" if kind == "as the checkpoint" else folder / "model.safetensors"
    os.mkfifo(pipe)
    path = pipe if kind == "as the checkpoint" else folder
    with driftline.init(settings=Settings(sdk=SdkSettings(system=())), transport=MemoryTransport()) as run:
        run.checkpoint(path, step=1)
        run.log({"loss": 1.0}, step=1)
        assert run.flush(30)
    assert run.counters()["checkpoints_refused"] == 1
    assert "no regular file" in caplog.text
    files = [FileEntry(pipe.name, 0)] if kind == "in the folder" else []
    seen = look(Checkpoint(digest="d", uri=str(path), format="safetensors", step=1, files=files))
    assert seen.state == "unreadable"
    assert "no regular file" in seen.reason
