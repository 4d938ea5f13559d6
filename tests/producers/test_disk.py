"""One contract for the disk and its in-memory twin: one owner, appended bytes, what a dead process leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driftline.producers.disk import FileDisk
from driftline.producers.memory_disk import MemoryDisk

Pair = tuple[Any, Any]
"""The disk as two processes see it."""


@pytest.fixture(params=["files", "memory"])
def views(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    if request.param == "files":
        return FileDisk(tmp_path / "not" / "there"), FileDisk(tmp_path / "not" / "there")
    disk = MemoryDisk()
    return disk, disk.another_process()


def test_a_folder_has_one_owner_until_it_is_let_go(views: Pair) -> None:
    ours, theirs = views
    assert ours.names() == []
    folder = ours.create("a")
    folder.append("1.seg", b"x")
    assert theirs.names() == ["a"]
    assert theirs.owned("a")
    assert theirs.claim("a") is None
    folder.release()
    assert not theirs.owned("a")
    claimed = theirs.claim("a")
    assert claimed.names() == ["1.seg"]
    assert ours.claim("a") is None
    claimed.delete("1.seg")
    claimed.remove()
    assert ours.names() == theirs.names() == []
    assert ours.claim("a") is None


def test_bytes_are_appended_cut_off_and_read_by_anybody(views: Pair) -> None:
    ours, theirs = views
    folder = ours.create("a")
    folder.append("1.seg", b"abc")
    folder.append("2.seg", b"other")
    folder.append("1.seg", b"def")
    assert folder.size("1.seg") == 6
    look = theirs.look("a")
    assert look.read("1.seg", 2, 3) == b"cde"
    assert look.read("1.seg", 4, 99) == b"ef"
    folder.truncate("1.seg", 4)
    folder.append("1.seg", b"!")
    assert look.read("1.seg", 0, 99) == b"abcd!"
    with pytest.raises(OSError):
        look.read("3.seg", 0, 1)
    look.release()
    assert theirs.claim("a") is None, "who only looks does not let go of what another one owns"
    folder.release()


def test_free_space_is_known_before_anything_is_there(views: Pair) -> None:
    assert views[0].free_bytes() > 0


def test_a_second_folder_of_the_same_name_is_refused(views: Pair) -> None:
    ours, theirs = views
    folder = ours.create("a")
    folder.append("1.seg", b"x")
    with pytest.raises(OSError):
        theirs.create("a")
    assert theirs.claim("a") is None
    folder.release()


def test_the_lock_of_a_killed_process_is_free_and_its_bytes_are_there(tmp_path: Path) -> None:
    code = f"""
import os, signal
from driftline.producers.disk import FileDisk
folder = FileDisk({str(tmp_path)!r}).create("a")
folder.append("1.seg", b"abc")
print("up", flush=True)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    disk = FileDisk(tmp_path)
    assert disk.owned("a")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = disk.claim("a")
    assert folder is not None
    assert folder.read("1.seg", 0, 9) == b"abc"
    folder.release()


def test_a_forked_child_that_lives_longer_does_not_make_its_parent_look_alive(
    tmp_path: Path, wait_for: Any
) -> None:
    folder = FileDisk(tmp_path).create("a")
    child = os.fork()
    if child == 0:
        folder.forget()
        signal.pause()
    try:
        folder.release()  # as the kernel does for a killed parent
        wait_for(lambda: not FileDisk(tmp_path).owned("a"), 60)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_spools_are_for_their_user_only(tmp_path: Path) -> None:
    """Metrics may be private."""
    folder = FileDisk(tmp_path / "spool").create("a")
    folder.append("1.seg", b"x")
    modes = {path.stat().st_mode & 0o077 for path in [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]}
    assert modes == {0}
    folder.release()


def test_a_place_that_cannot_be_is_an_error_that_is_contained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = FileDisk(tmp_path / "file" / "spool")
    assert disk.names() == []
    with pytest.raises(OSError):
        disk.create("a")
