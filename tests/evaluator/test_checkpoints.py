"""Only whole checkpoints are evaluated; what is not whole gets a reason, never a number (case 31)."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driftline.clock import ManualClock
from driftline.errors import BadData
from driftline.evaluator.checkpoints import Changed, Look, NotWhole, decide, look, path_of, wait_until_whole
from driftline.evaluator.safetensors_header import HEADER_MAX_BYTES, Cut, parse, read_header
from driftline.events import Checkpoint, FileEntry, with_bounded_manifest
from driftline.producers.checkpoint import describe
from driftline.producers.counters import Counters, Notes
from driftline.producers.protect import Protector
from driftline.settings import SdkSettings

SHARD3 = "model-00003-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, keep: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: keep if keep >= 0 else len(data) + keep])

    return change


def rename(name: str, to: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).rename(folder / to) and None


def append(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + data) and None


def write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def only_pickles(folder: Path) -> None:
    for file in list(folder.iterdir()):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def foreign_index(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))


def extra_tensor(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["ghost"] = SHARD3
    (folder / INDEX).write_text(json.dumps(index))


BROKEN: list[tuple[str, Callable[[Path], None], str, str]] = [
    ("shard missing", remove(SHARD3), "incomplete", SHARD3),
    ("shard empty", cut(SHARD3, 0), "incomplete", SHARD3),
    ("shard cut in its data", cut(SHARD3, -1), "incomplete", SHARD3),
    ("shard cut in its header", cut(SHARD3, 20), "incomplete", SHARD3),
    ("shard cut in its length", cut(SHARD3, 5), "incomplete", SHARD3),
    ("shard under a tmp- name", rename(SHARD3, "tmp-" + SHARD3), "incomplete", SHARD3),
    ("index missing", remove(INDEX), "incomplete", INDEX),
    ("index cut", cut(INDEX, 30), "incomplete", INDEX),
    ("file of the manifest missing", remove("config.json"), "incomplete", "config.json"),
    ("file of the manifest cut", cut("config.json", -1), "incomplete", "config.json"),
    ("shard too long", append(SHARD3, b"more"), "unreadable", SHARD3),
    ("shard is no safetensors file", write(SHARD3, b"\xff" * 4000), "unreadable", SHARD3),
    ("only pickles", only_pickles, "unreadable", "save the weights as safetensors"),
    ("index names a file outside", foreign_index, "unreadable", "not inside the checkpoint"),
    ("index is no index", write(INDEX, b"[1]"), "unreadable", INDEX),
    ("shard lacks a tensor of the index", extra_tensor, "unreadable", "ghost"),
]


@pytest.mark.parametrize(
    ("change", "state", "names"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
@pytest.mark.parametrize("manifest", ["manifest", "no manifest"])
def test_a_broken_folder_is_named(
    tiny: Any, tmp_path: Path, change: Callable[[Path], None], state: str, names: str, manifest: str
) -> None:
    checkpoint = tiny.write(tmp_path / "step-10", shards=3)
    change(tmp_path / "step-10")
    if manifest == "no manifest":
        checkpoint = msgspec.structs.replace(checkpoint, files=[])
    seen = look(checkpoint)
    if manifest == "no manifest" and names == "config.json":
        assert seen.state == "whole", "only the manifest knows of it"
        return
    if manifest == "no manifest" or state == "incomplete":
        assert seen.state == state
        assert names in seen.reason
    else:
        assert seen.state in ("unreadable", "incomplete"), "the manifest may see it first, in its own words"
    assert not seen.weights


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("uri", ["{}", "file://{}", "file://localhost{}"])
def test_a_whole_folder_is_whole(tiny: Any, tmp_path: Path, shards: int, uri: str) -> None:
    checkpoint = tiny.write(tmp_path / "step 10", shards=shards)
    seen = look(msgspec.structs.replace(checkpoint, uri=uri.format(checkpoint.uri)))
    assert (seen.state, seen.reason, len(seen.weights)) == ("whole", "", shards)


def test_a_single_file_is_a_checkpoint_too(tiny: Any, tmp_path: Path) -> None:
    tiny.write(tmp_path / "step-10")
    file = tmp_path / "step-10" / "model.safetensors"
    one = Checkpoint(digest="d", uri=str(file), files=[FileEntry(file.name, file.stat().st_size)])
    assert look(one).weights == (file,)
    cut("model.safetensors", -1)(file.parent)
    assert look(one).state == "incomplete"


def test_optimizer_state_beside_the_weights_is_not_loaded(tiny: Any, tmp_path: Path) -> None:
    checkpoint = tiny.write(tmp_path / "step-10")
    (tmp_path / "step-10" / "optimizer.safetensors").write_bytes(b"\0")
    assert [file.name for file in look(checkpoint).weights] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("step-10", "absolute path"),
        ("../step-10", "absolute path"),
        ("/data/../../etc", "absolute path"),
        ("s3://bucket/step-10", "folder that the evaluator sees"),
        ("file://otherhost/step-10", "folder that the evaluator sees"),
        ("/data/\0", "absolute path"),
        ("", "absolute path"),
    ],
)
def test_a_uri_that_is_no_local_path_is_unreadable_at_once(uri: str, remedy: str) -> None:
    with pytest.raises(BadData, match=remedy):
        path_of(uri)
    seen = look(Checkpoint(digest="d", uri=uri))
    assert (seen.state, seen.final) == ("unreadable", True)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ""])
def test_a_manifest_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    seen = look(Checkpoint(digest="d", uri=str(tmp_path), files=[FileEntry(name, 1)]))
    assert (seen.state, seen.final) == ("unreadable", True)


def test_another_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    seen = look(Checkpoint(digest="d", uri=str(tmp_path), format="torch"))
    assert (seen.state, seen.final) == ("unreadable", True)
    assert "save the weights as safetensors" in seen.reason


@pytest.mark.parametrize("staged", ["tmp-step-10", "step-10.tmp"])
def test_a_folder_under_its_staging_name_is_incomplete_not_gone(
    tiny: Any, tmp_path: Path, staged: str
) -> None:
    tiny.write(tmp_path / staged)
    seen = look(Checkpoint(digest="d", uri=str(tmp_path / "step-10")))
    assert (seen.state, staged in seen.reason) == ("incomplete", True)
    assert look(Checkpoint(digest="d", uri=str(tmp_path / staged))).state == "incomplete"


@pytest.mark.parametrize(
    ("state", "final", "waited_us", "wanted"),
    [
        ("whole", False, 0, "use"),
        ("incomplete", False, 0, "wait"),
        ("gone", False, 9, "wait"),
        ("incomplete", False, 10, "give up"),
        ("unreadable", False, 9, "wait"),
        ("unreadable", True, 0, "give up"),
    ],
)
def test_decisions(state: Any, final: bool, waited_us: int, wanted: str) -> None:
    assert decide(Look(state, final=final), waited_us=waited_us, wait_us=10) == wanted


class Disk:
    """A disk on which something happens at a time of the manual clock."""

    def __init__(self, at_us: int, happens: Callable[[], Any]) -> None:
        self.clock = ManualClock()
        self.at_us, self.happens = at_us, happens
        self.looks = 0

    def sleep(self, length_us: int) -> None:
        self.looks += 1
        before = self.clock.now_us()
        self.clock.advance(length_us)
        if before < self.at_us <= self.clock.now_us():
            self.happens()

    def wait(self, checkpoint: Checkpoint) -> Any:
        return wait_until_whole(
            checkpoint, wait_us=10_000_000, poll_us=500_000, clock=self.clock, sleep=self.sleep
        )


def test_a_late_shard_is_waited_for(tiny: Any, tmp_path: Path) -> None:
    checkpoint = tiny.write(tmp_path / "step-10", shards=3)
    late = (tmp_path / "step-10" / SHARD3).rename(tmp_path / SHARD3)
    disk = Disk(5_000_000, lambda: late.rename(tmp_path / "step-10" / SHARD3))
    found = disk.wait(checkpoint)
    assert found.waited_us == 5_000_000
    assert set(found.folder.state_dict()) == set(tiny.Model().state_dict())


def test_a_folder_that_becomes_visible_later_is_waited_for(tiny: Any, tmp_path: Path) -> None:
    checkpoint = tiny.write(tmp_path / "hidden")
    checkpoint = msgspec.structs.replace(checkpoint, uri=str(tmp_path / "step-10"))
    assert look(checkpoint).state == "gone"
    disk = Disk(3_000_000, lambda: (tmp_path / "hidden").rename(tmp_path / "step-10"))
    assert disk.wait(checkpoint).waited_us == 3_000_000


def test_what_never_comes_ends_at_the_limit_with_the_last_reason(tiny: Any, tmp_path: Path) -> None:
    disk = Disk(1 << 60, lambda: None)
    with pytest.raises(NotWhole, match=r"waited 10\.0 s") as caught:
        disk.wait(Checkpoint(digest="d", uri=str(tmp_path / "never")))
    assert caught.value.status == "gone"
    assert disk.looks == 20


def test_the_digest_is_that_of_the_content(tiny: Any, tmp_path: Path) -> None:
    clock = ManualClock()

    def digest(name: str, **changes: Any) -> str:
        checkpoint = tiny.write(tmp_path / name, **changes)
        found = wait_until_whole(checkpoint, wait_us=0, poll_us=1, clock=clock, sleep=lambda us: None)
        return str(found.folder.digest())

    assert digest("a", seed=1) == digest("b", seed=1) != digest("c", seed=2)


@pytest.mark.parametrize("change", [append("model.safetensors", b""), remove("model.safetensors")])
def test_weights_that_change_while_they_are_read_are_noticed(
    tiny: Any, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    checkpoint = tiny.write(tmp_path / "step-10")
    found = wait_until_whole(checkpoint, wait_us=0, poll_us=1, clock=ManualClock(), sleep=lambda us: None)
    found.folder.check_unchanged()
    change(tmp_path / "step-10")
    with pytest.raises(Changed):
        found.folder.check_unchanged()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, -4]}}',
        b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},'
        b' "b": {"dtype": "F32", "shape": [], "data_offsets": [2, 6]}}',
    ],
)
def test_a_broken_header_is_bad_data(header: bytes) -> None:
    with pytest.raises(BadData):
        parse(header, name="x")


def test_a_header_longer_than_the_format_allows_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", HEADER_MAX_BYTES + 1))
    with pytest.raises(BadData, match="no safetensors file") as caught:
        read_header(file)
    assert not isinstance(caught.value, Cut)


def announced(folder: Path, copy: str = "") -> Checkpoint:
    """What the SDK says of a folder."""
    found = with_bounded_manifest(describe(str(folder)))
    return msgspec.structs.replace(found, copy=copy) if copy else found


def protected(folder: Path) -> Checkpoint:
    """The same with the copy that the SDK made."""
    protector = Protector("p", SdkSettings(), Counters(), Notes())
    return announced(folder, protector.protect(describe(str(folder))))


def test_a_checkpoint_that_the_trainer_removed_in_the_meantime_is_evaluated(
    tiny: Any, tmp_path: Path
) -> None:
    """Rotated away between its announcement and the lease: the weights come from the copy, the same ones."""
    tiny.write(tmp_path / "step-10", shards=3)
    checkpoint = protected(tmp_path / "step-10")
    before = wait_until_whole(checkpoint, wait_us=0, poll_us=1, clock=ManualClock(), sleep=lambda us: None)
    digest = before.folder.digest()
    shutil.rmtree(tmp_path / "step-10")
    found = wait_until_whole(checkpoint, wait_us=0, poll_us=1, clock=ManualClock(), sleep=lambda us: None)
    assert found.folder.digest() == digest
    assert found.folder.path.name == "step-10"
    assert set(found.folder.state_dict()) == set(tiny.Model().state_dict())


def test_a_copy_that_is_gone_or_out_of_sight_leaves_the_trainers_own(tiny: Any, tmp_path: Path) -> None:
    tiny.write(tmp_path / "step-10")
    for copy in (str(tmp_path / "nowhere"), "relative", "s3://bucket/x"):
        seen = look(announced(tmp_path / "step-10", copy))
        assert (seen.state, seen.path) == ("whole", tmp_path / "step-10")
    checkpoint = announced(tmp_path / "step-10", str(tmp_path / "nowhere"))
    shutil.rmtree(tmp_path / "step-10")
    assert look(checkpoint).state == "gone"


def flip(folder: Path) -> None:
    """Other weights in the same file, of the same size, as a trainer that saves in place does."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\1\2\3\4\5\6\7\1")


@pytest.mark.parametrize("announce", [announced, protected])
def test_files_that_were_written_to_after_their_announcement_are_not_evaluated(
    tiny: Any, tmp_path: Path, announce: Callable[[Path], Checkpoint]
) -> None:
    """A link is the same file, so the copy changes too; the digest of the event tells."""
    tiny.write(tmp_path / "step-10")
    checkpoint = announce(tmp_path / "step-10")
    assert look(checkpoint).state == "whole"
    flip(tmp_path / "step-10")
    seen = look(checkpoint)
    assert seen.state == "unreadable"
    assert "written to after run.checkpoint()" in seen.reason
    elsewhere = msgspec.structs.replace(checkpoint, sampling=msgspec.UNSET)
    assert look(elsewhere).state == "whole", "an event that does not say how its digest was made"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda folder: None, "whole"),
        (remove(f"part-{7:040}"), "incomplete"),
        (cut("model.safetensors", -1), "incomplete"),
        (write("more", b"x"), "unreadable"),
        (flip, "unreadable"),
    ],
)
def test_a_manifest_too_long_to_travel_is_checked_by_count_size_and_digest(
    tiny: Any, tmp_path: Path, change: Callable[[Path], None], state: str
) -> None:
    folder = tmp_path / "step-10"
    tiny.write(folder)
    for at in range(600):
        (folder / f"part-{at:040}").write_bytes(b"x")
    checkpoint = announced(folder)
    assert (checkpoint.files, checkpoint.count) == ([], 602)
    change(folder)
    assert look(checkpoint).state == state
