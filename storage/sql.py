"""One query on the tables of a root, for ``driftline sql``."""

from __future__ import annotations

import os

import pyarrow as pa

from driftline.storage.open import open_catalog


def query(root: str | os.PathLike[str], sql: str) -> pa.Table:
    """The answer to ``sql`` over the views of ``root`` as an Arrow table.

    Raises:
        BadData: no tables there, wrong SQL or a broken file; its text is one line.
    """
    with open_catalog(root) as catalog:
        return catalog.query(sql)
