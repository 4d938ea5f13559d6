"""A checkpoint stays for its evaluation although the trainer removes it, within bounds."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driftline import events
from driftline.producers import protect
from driftline.producers.checkpoint import describe
from driftline.producers.counters import Counters, Notes
from driftline.producers.protect import FOLDER, MAKING, Copy, Protector, surplus
from driftline.settings import SdkSettings


def save(at: Path, fill: bytes = b"w", size: int = 1000) -> Path:
    """A checkpoint of two files, one in a folder below."""
    (at / "part").mkdir(parents=True)
    (at / "model.safetensors").write_bytes(fill * size)
    (at / "part" / "optimizer.bin").write_bytes(fill)
    return at


def content(at: str | Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(at)): file.read_bytes() for file in sorted(Path(at).rglob("*")) if file.is_file()
    }


class Rig:
    """A protector and what it said."""

    def __init__(self, process: str = "p", **settings: Any) -> None:
        self.counters, self.notes = Counters(), Notes()
        self.protector = Protector(process, SdkSettings(**settings), self.counters, self.notes)

    def protect(self, path: Path) -> str:
        return self.protector.protect(describe(str(path)))

    @property
    def said(self) -> str:
        return "\n".join(self.notes._waiting)


def test_the_copy_outlives_the_checkpoint_and_costs_no_space(tmp_path: Path) -> None:
    saved = save(tmp_path / "step-5")
    rig, before = Rig(), content(saved)
    copy = Path(rig.protect(saved))
    assert copy == tmp_path / FOLDER / describe(str(saved)).digest / "step-5"
    assert os.path.samefile(copy / "model.safetensors", saved / "model.safetensors")
    shutil.rmtree(saved)
    assert content(copy) == before
    assert rig.counters.snapshot() == {"checkpoints_protected": 1}
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


def test_the_event_names_the_copy_and_the_trainers_path(sdk: Callable[..., Any], tmp_path: Path) -> None:
    """Also of one file, also through a link to the newest one."""
    saved = save(tmp_path / "step-5")
    (tmp_path / "last").symlink_to(saved)
    (tmp_path / "one.pt").write_bytes(b"123")
    under_test = sdk()
    for path in (saved, tmp_path / "last", tmp_path / "one.pt"):
        under_test.run.checkpoint(path, step=5)
    under_test.run.finish()
    first, link, one = (event.checkpoint for event in under_test.events(events.CheckpointSaved))
    assert (first.uri, link.uri, one.uri) == (str(saved), str(tmp_path / "last"), str(tmp_path / "one.pt"))
    assert first.copy == link.copy
    shutil.rmtree(saved)
    (tmp_path / "one.pt").unlink()
    assert describe(first.copy).digest == first.digest
    assert describe(one.copy).digest == one.digest
    assert Path(one.copy).name == "one.pt"


def test_files_that_are_links_are_kept_as_what_they_name(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blob")
    copy = Path(Rig().protect(tmp_path / "snapshot"))
    (tmp_path / "blob").unlink()
    assert content(copy) == {"model.safetensors": b"weights"}


def test_ranks_that_announce_the_same_folder_protect_it_once(tmp_path: Path) -> None:
    saved = save(tmp_path / "step-5")
    rigs = [Rig(f"p{rank}") for rank in range(8)]
    found: list[str] = []
    start = threading.Barrier(len(rigs))

    def rank(rig: Rig) -> None:
        start.wait(60)
        found.append(rig.protect(saved))

    threads = [threading.Thread(target=rank, args=(rig,)) for rig in rigs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1
    assert content(found[0]) == content(saved)
    assert os.stat(saved / "model.safetensors").st_nlink == 2
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [describe(str(saved)).digest]


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({"count": 2}, ["c", "d"]),
        ({"size": 25}, ["c", "d"]),
        ({"age_us": 2}, ["b", "c", "d"]),
        ({"room": 11}, ["c", "d"]),
        ({"count": 0}, []),
        ({}, ["a", "b", "c", "d"]),
    ],
)
def test_the_newest_are_kept(bounds: dict[str, int], kept: list[str]) -> None:
    made = [Copy(name, at, 10) for at, name in enumerate("abcd", start=1)]
    limits = {"count": 9, "size": 99, "age_us": 9, "room": 0} | bounds
    gone = surplus(list(reversed(made)), now_us=4, **limits)
    assert [copy.name for copy in made if copy not in gone] == kept


def made_before(copy: str, seconds: int) -> None:
    """Sets the age of a copy."""
    at = time.time_ns() - seconds * 10**9
    os.utime(os.path.dirname(copy), ns=(at, at))


def test_what_is_too_many_or_too_old_is_removed_from_the_disk(tmp_path: Path) -> None:
    rig = Rig(protect_count=2)
    made = []
    for step in range(4):
        made.append(rig.protect(save(tmp_path / f"step-{step}", fill=bytes([step]))))
        made_before(made[-1], 60 - step)
    assert [os.path.exists(copy) for copy in made] == [False, False, True, True]
    assert rig.counters["checkpoints_released"] == 2
    made_before(made[2], 25 * 3600)
    dead = tmp_path / FOLDER / f"{MAKING}dead"
    dead.mkdir()
    os.utime(dead, ns=(0, 0))
    (tmp_path / FOLDER / "mine").mkdir()
    rig.protector.turn(protect.TIDY_US)
    left = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert left == {"mine", Path(made[3]).parent.name}, "only what was made here goes"
    assert all((tmp_path / f"step-{step}" / "model.safetensors").exists() for step in range(4))


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (errno.EXDEV, "cross-device"),
        (errno.EPERM, "not permitted"),
        (errno.EMLINK, "Too many links"),
        (errno.EROFS, "Read-only"),
    ],
)
def test_where_links_cannot_be_made_it_is_announced_as_it_is_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int, says: str
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, "link", link)
    rig = Rig()
    assert rig.protect(save(tmp_path / "a")) == rig.protect(save(tmp_path / "b", b"x")) == ""
    assert rig.counters.snapshot() == {"checkpoints_unprotected": 2}
    assert says in rig.said
    assert rig.said.count("is not protected") == 1
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_the_trainers_own_saves_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large for the limit, or too little free on the file system: nothing is kept, old copies go."""
    rig = Rig(protect_bytes=500)
    assert rig.protect(save(tmp_path / "large")) == ""
    assert "sdk.protect_space" in rig.said
    rig = Rig()
    kept = rig.protect(save(tmp_path / "step-1"))
    shutil.rmtree(tmp_path / "step-1")
    made_before(kept, 60)

    class Full:
        f_bavail, f_frsize = 1500, 1

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    assert rig.protect(save(tmp_path / "step-2", b"x"))
    assert not os.path.exists(kept), "502 bytes were missing, and the old copy had 1001"
    Full.f_bavail = 0
    assert rig.protect(save(tmp_path / "step-3", b"y")) == ""
    assert "free on its file system" in rig.said


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / FOLDER).symlink_to(tmp_path / "elsewhere")
    rig = Rig()
    assert rig.protect(save(tmp_path / "step-1")) == ""
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_checkpoint_that_changes_while_it_is_announced_is_not_kept(tmp_path: Path) -> None:
    rig, saved = Rig(), save(tmp_path / "step-1")
    described = describe(str(saved))
    (saved / "model.safetensors").write_bytes(b"longer" * 1000)
    assert rig.protector.protect(described) == ""
    assert "written to" in rig.said
    shutil.rmtree(saved)
    assert rig.protector.protect(described) == ""
    assert rig.counters["checkpoints_unprotected"] == 2


@pytest.mark.parametrize("off", [{"protect_bytes": 0}, {"protect_count": 0}])
def test_it_can_be_switched_off(tmp_path: Path, off: dict[str, int]) -> None:
    rig = Rig(**off)
    assert rig.protect(save(tmp_path / "step-1")) == ""
    assert not (tmp_path / FOLDER).exists()
    assert rig.counters.snapshot() == {}


def test_a_manifest_of_thousands_of_files_travels_as_count_and_size(
    sdk: Callable[..., Any], tmp_path: Path
) -> None:
    """Case 17, the sibling: the checkpoint is repeated in requests, leases and results, each one record."""
    saved = tmp_path / "step-5"
    saved.mkdir()
    for at in range(600):
        (saved / f"__{at:040}_0.distcp").write_bytes(b"%d" % at)
    under_test = sdk(protect_bytes=0)
    under_test.run.checkpoint(saved, step=5)
    under_test.run.finish()
    (event,) = under_test.events(events.CheckpointSaved)
    whole = describe(str(saved))
    assert (event.checkpoint.files, event.checkpoint.count) == ([], 600)
    assert event.checkpoint.size == sum(entry.size for entry in whole.files)
    assert event.checkpoint.digest == whole.digest
    assert len(events.encode(event)) < 1000
    assert len(msgspec.json.encode(whole)) > events.MANIFEST_BYTES_MAX
