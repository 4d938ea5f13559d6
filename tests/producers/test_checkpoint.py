"""The manifest and digest of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from driftline.checkpoint_files import EDGE_BYTES, PIECES, pieces
from driftline.errors import BadData
from driftline.producers.checkpoint import describe, local_path


def folder(at: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(data)
    return at


def test_files_are_listed_with_their_sizes(tmp_path: Path) -> None:
    path = folder(tmp_path / "step-5", {"model.safetensors": b"12345", "config.json": b"{}", "sub/a": b""})
    found = describe(str(path), step=5, epoch=1.5)
    assert [(entry.path, entry.size) for entry in found.files] == [
        ("config.json", 2),
        ("model.safetensors", 5),
        ("sub/a", 0),
    ]
    assert (found.uri, found.format, found.step, found.epoch) == (str(path), "safetensors", 5, 1.5)


@pytest.mark.parametrize("size", [10, 1000, 5_000_000])
@pytest.mark.parametrize("where", [0.0, 0.999999])
def test_equal_names_and_sizes_with_other_content_differ(tmp_path: Path, size: int, where: float) -> None:
    """All checkpoints of a run have the same names and sizes."""
    data = bytearray(size)
    path = folder(tmp_path, {"w.safetensors": bytes(data)})
    before = describe(str(path)).digest
    data[int(size * where)] = 1
    folder(tmp_path, {"w.safetensors": bytes(data)})
    assert describe(str(path)).digest != before


def test_a_change_in_any_sampled_piece_is_seen(tmp_path: Path) -> None:
    size = 3_000_000
    digests = set()
    for start, length in pieces(size):
        data = bytearray(size)
        data[start + length // 2] = 1
        digests.add(describe(str(folder(tmp_path, {"w": bytes(data)}))).digest)
    assert len(digests) == PIECES + 2


def test_the_digest_does_not_depend_on_the_place(tmp_path: Path) -> None:
    content = {"w.safetensors": os.urandom(1000), "b/c": b"x"}
    one = describe(str(folder(tmp_path / "a", content)))
    two = describe(str(folder(tmp_path / "b", content)))
    assert one.digest == two.digest


def test_pieces_lie_inside_the_file() -> None:
    for size in (300_000, 300_001, 10**9, 2**40):
        assert all(start >= 0 and start + length <= size for start, length in pieces(size))
        assert pieces(size)[0] == (0, EDGE_BYTES)


def test_one_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"abc")
    found = describe(f"file://{tmp_path}/model.pt")
    assert [tuple(map(str, (entry.path, entry.size))) for entry in found.files] == [("model.pt", "3")]
    assert found.format == "torch"


@pytest.mark.parametrize(
    ("path", "says"),
    [("gone", "cannot be read"), ("empty", "no files"), ("s3://bucket/x", "only local paths")],
)
def test_what_is_not_there_is_bad_data_with_a_remedy(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match=says):
        describe(path if "://" in path else str(tmp_path / path))


def test_a_broken_link_is_bad_data(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadData, match="cannot be read"):
        describe(str(tmp_path))


def test_uris_on_other_hosts_are_not_local() -> None:
    with pytest.raises(BadData):
        local_path("file://otherhost/x")
