"""Tables in an object store (``storage.root: s3://bucket/prefix``): addresses, and how DuckDB reads there.

Endpoint and credentials come from the environment, as for every tool of the store (``AWS_ENDPOINT_URL``,
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ALLOW_HTTP`` for a store without TLS,
or the machine's own role); they are in no settings file, and so in no log. Commits need a store that honours
``If-None-Match`` (a conditional put).

DuckDB needs no extension: it reads through delta-rs's own client, which :func:`connect` registers as a file
system of the root's scheme (by fsspec, of the extra ``driftline[objects]``).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import duckdb

from driftline.errors import SettingsError
from driftline.storage.root import without_secret

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    import pyarrow.parquet as pq
    from deltalake.fs import DeltaStorageHandler

SCHEMES = ("s3",)
OPTIONS = {"conditional_put": "etag"}
"""Two commits of one version must not both land; where the store cannot do that, it refuses each commit."""


def is_remote(root: str | os.PathLike[str]) -> bool:
    """Whether the root is in an object store."""
    return "://" in os.fspath(root)


def address(root: str | os.PathLike[str]) -> str:
    """The root without a slash at its end. Raises SettingsError for a scheme that is not known."""
    text = os.fspath(root).rstrip("/")
    found = urlsplit(text)
    if found.scheme not in SCHEMES:
        raise SettingsError("storage.root", without_secret(text), "name a local folder or s3://bucket/prefix")
    if not found.netloc or found.username or found.query:
        raise SettingsError(
            "storage.root",
            f"{found.scheme}://...",
            "write s3://bucket/prefix; credentials belong into the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY)",
        )
    return text


def place(root: str | os.PathLike[str]) -> Path | str:
    """A root as a path, or as an address where it is one. Raises SettingsError."""
    return address(root) if is_remote(root) else Path(root)


def parquet(file: str, **options: Any) -> pq.ParquetFile:
    """Opens a file of a table, by its path or address; ``options`` as :class:`pyarrow.parquet.ParquetFile`.

    From an object store the parts that are needed are read together. Raises OSError, pa.ArrowException."""
    import pyarrow.parquet as pq

    if not is_remote(file):
        return pq.ParquetFile(file, **options)
    options |= {"memory_map": False, "pre_buffer": True}
    folder, _, name = file.rpartition("/")
    return pq.ParquetFile(files_below(folder).open_input_file(name), **options)


def files_below(root: str) -> pafs.FileSystem:
    """The files of an address, by what comes behind it."""
    import pyarrow.fs as pafs

    return pafs.PyFileSystem(_handler(root))


def _handler(root: str) -> DeltaStorageHandler:
    from deltalake.fs import DeltaStorageHandler

    return DeltaStorageHandler(root, options=OPTIONS)


def move(root: str, old: str, new: str) -> None:
    """Moves an object below ``root``. A store cannot rename, so it is copied (within the store) and then
    deleted: a kill between the two leaves both. Raises OSError."""
    handler = _handler(root)
    handler._handler.copy_file(old, new)  # the handler's own method misnames an argument (deltalake 1.6.6)
    handler.delete_file(old)


def put(file: str, parts: Iterable[bytes]) -> None:
    """Writes an object, which is there when it is whole, and not before. Raises OSError."""
    folder, _, name = file.rpartition("/")
    handler = _handler(folder)
    stream: Any = handler._handler.open_output_stream(name, None)  # pyarrow would give it no bytes
    for part in parts:
        stream.write(part)
    stream.close()


def connect(root: str | os.PathLike[str], database: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that can read files of this root. Raises SettingsError without fsspec."""
    db = duckdb.connect(database)
    if is_remote(root):
        db.register_filesystem(_file_system(address(root)))
    return db


def _file_system(root: str) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError as error:
        raise SettingsError(
            "storage.root", root, "to query it fsspec is needed: pip install 'driftline[objects]'"
        ) from error
    import pyarrow.fs as pafs

    files = files_below(root)
    before = root + "/"

    class Objects(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
        """Files of one root, by their whole address; only reads."""

        protocol = urlsplit(root).scheme
        cachable = False

        def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
            return files.open_input_file(path.removeprefix(before))

        def size(self, path: str) -> int:
            return int(files.get_file_info(path.removeprefix(before)).size)

        def exists(self, path: str, **_: Any) -> bool:
            return bool(files.get_file_info(path.removeprefix(before)).type == pafs.FileType.File)

        def isfile(self, path: str) -> bool:
            return self.exists(path)

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]

        def unstrip_protocol(self, name: str) -> str:
            return name

        def modified(self, path: str) -> Any:
            return files.get_file_info(path.removeprefix(before)).mtime

    return Objects()
