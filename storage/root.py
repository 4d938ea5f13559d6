"""Where the tables are: the root as an absolute path that delta-rs and DuckDB can both use."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from driftline.errors import SettingsError

_BAD_CHARACTERS = frozenset("[]^|\\%?\n\r\0")


def writable(root: str | os.PathLike[str]) -> Path:
    """The root as an absolute path, made if missing. Raises SettingsError if nothing can be written there."""
    path = local(root)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = "free some space" if error.errno == errno.ENOSPC else "mend its permissions"
        raise SettingsError(
            "storage.root",
            str(root),
            f"the folder cannot be written ({reason}); {remedy}, or name another one "
            "(storage.root in the YAML file, or DRIFTLINE_STORAGE__ROOT)",
        ) from error
    return path


def local(root: str | os.PathLike[str]) -> Path:
    """The absolute path of a root that delta-rs and DuckDB can both use. Raises SettingsError."""
    text = os.fspath(root)
    if "://" in text:
        raise SettingsError("storage.root", without_secret(text), "this works on a local folder only")
    path = Path(text).absolute()
    bad = sorted(set(str(path)) & _BAD_CHARACTERS)
    if bad:
        shown = " ".join(repr(character)[1:-1] for character in bad)
        raise SettingsError("storage.root", text, f"no table can be below a folder with {shown} in its name")
    return path


def without_secret(address: str) -> str:
    """An address for a line that others may read.

    >>> without_secret("s3://bucket/prefix"), without_secret("https://name:password@host/x")
    ('s3://bucket/prefix', 'https://...')
    """
    scheme, _, rest = address.partition("://")
    return f"{scheme}://..." if set(rest) & set("@?#") else address
