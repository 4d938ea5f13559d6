"""What a checkpoint event says of its files: names, sizes, format, and a digest that samples content
(:mod:`driftline.checkpoint_files`). The evaluator hashes everything while it loads: the key of results.

Runs on the SDK's thread, after the save: the files are complete and still.
"""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from driftline.checkpoint_files import SAMPLING, list_files, sampled_digest
from driftline.errors import BadData
from driftline.events import Checkpoint


def local_path(uri: str) -> str:
    """The absolute path of a path or file:// URI. Raises BadData for what is not a local file.

    >>> local_path("file:///tmp/a%20b")
    '/tmp/a b'
    """
    if "://" in uri:
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise BadData(
                f"checkpoint {uri}: only local paths and file:// are read; save it to a shared folder"
            )
        return os.path.abspath(unquote(parts.path))
    return os.path.abspath(uri)


def describe(
    path: str,
    *,
    step: int | None = None,
    epoch: float | None = None,
    format: str | None = None,  # noqa: A002
) -> Checkpoint:
    """Reads a checkpoint folder or file.

    Raises:
        BadData: nothing there, nothing in it, or unreadable; says which and what to do.
    """
    try:
        path = local_path(path)
        files = list_files(path)
        if not files:
            raise BadData(f"checkpoint {path} has no files: call checkpoint() after the save is complete")
        digest = sampled_digest(path, files)
    except OSError as error:
        raise BadData(
            f"checkpoint {path} cannot be read ({error.strerror or error}): call checkpoint() after "
            "the save is complete, on the host that has the files"
        ) from error
    except ValueError as error:  # a null byte in the path, "http://[x"
        raise BadData(f"checkpoint {path!r:.500} is no path: {error}") from error
    for name in (path, *(entry.path for entry in files)):
        if not _is_utf8(name):
            raise BadData(f"checkpoint {path!r:.500}: {name!r:.200} is not UTF-8, rename it")
    return Checkpoint(
        digest=digest,
        sampling=SAMPLING,
        uri=path,
        format=format or guess_format([entry.path for entry in files]),
        step=step,
        epoch=epoch,
        files=files,
    )


def guess_format(names: list[str]) -> str:
    """The format that file names tell.

    >>> guess_format(["config.json", "model.safetensors"]), guess_format([".metadata", "__0_0.distcp"])
    ('safetensors', 'dcp')
    """
    for format_name, endings in (
        ("safetensors", (".safetensors", ".safetensors.index.json")),
        ("dcp", (".distcp",)),
        ("torch", (".pt", ".pth", ".bin", ".ckpt")),
    ):
        if any(name.endswith(endings) for name in names):
            return format_name
    return "unknown"


def _is_utf8(name: str) -> bool:
    """Whether the name can travel as JSON; the names of files may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
