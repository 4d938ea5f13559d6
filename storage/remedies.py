"""What delta-rs and the system say of a file, as one line, with what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

from driftline.storage.table_log import fault

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_REMEDIES = {
    "No space left": "free some space on that disk",
    "Disk quota exceeded": "free some space or raise the quota",
    "Read-only file system": "mount it for writing",
    "Permission denied": "mend the folder's permissions",
}


def told(error: Exception) -> str:
    r"""What a library says of a file as one line, with what to do where that is known.

    delta-rs draws its errors over several lines, in colours.

    >>> told(OSError("Unable to copy\n  \x1b[31m-\x1b[0m No space left on device (os error 28)\n"))
    'Unable to copy - No space left on device (os error 28): free some space on that disk'
    """
    line = " ".join(_COLOUR.sub("", str(error)).split())
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in line), "")
    return line if line.endswith(remedy) else f"{line}: {remedy}"


def fault_of(folder: Path, error: Exception) -> str:
    """Which file of the table's log is broken, or what delta-rs says if none looks so."""
    try:
        return fault(folder) or told(error)
    except OSError:
        return told(error)
