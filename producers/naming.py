"""Names of metrics: any characters, at most 600 bytes of UTF-8, one rule for what is longer.

A longer name is cut at a character so that with ``~`` and the first 16 hex digits of the SHA-256 of the
whole name it has at most 600 bytes: two long names that differ only at the end stay apart, and the same
long name is the same metric on every rank.
"""

from __future__ import annotations

import hashlib

from driftline.frames import MAX_NAME_BYTES

_HASH_CHARS = 16


def metric_name(name: str) -> tuple[str, bool]:
    """The name as it is stored, and True if it had to be cut.

    Lone surrogates, which UTF-8 cannot carry, become U+FFFD (and count as cut, since the name changed).

    >>> metric_name("timing(s)/gen")
    ('timing(s)/gen', False)
    >>> cut, was_cut = metric_name("x" * 601); len(cut), was_cut, cut[582:]
    (600, True, 'x~04324f631ae5fbe6')
    """
    if name.isascii() and len(name) <= MAX_NAME_BYTES:
        return name, False
    data = name.encode(errors="surrogatepass")
    clean = data.decode(errors="replace")
    if clean == name and len(data) <= MAX_NAME_BYTES:
        return name, False
    keep = MAX_NAME_BYTES - _HASH_CHARS - 1
    head = clean.encode()[:keep].decode(errors="ignore")
    return f"{head}~{hashlib.sha256(data).hexdigest()[:_HASH_CHARS]}", True
