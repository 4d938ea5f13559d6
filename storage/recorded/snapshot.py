"""The tables as they are at one moment: which files each has, and how far ``samples`` goes.

What reads several tables, or one for long, reads them all from one snapshot: a sink, a compaction or a
retention that works meanwhile changes nothing of it. (The files stay for an hour after they are replaced.)
A sink commits one table after another, ``log`` before ``samples``, so a snapshot may lie between two commits;
:meth:`Snapshot.reached` says up to where the samples of a topic's partition are there.
"""

from __future__ import annotations

import os

from driftline.storage import commits
from driftline.storage.listing import files_of, newest_commits, read_handles
from driftline.storage.store import App
from driftline.storage.tables import TableName


class Snapshot:
    """Raises BadData if there are no tables, or a table's log cannot be read."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = root
        self._commits = newest_commits(root)
        handles = read_handles(root)
        self.files: dict[TableName, list[str]] = files_of(root, handles)
        self._samples = handles.get("samples")

    def reached(self, topic_uuid: str, partition: int) -> int | None:
        """The last offset whose samples are there, None where the table does not say."""
        if self._samples is None:
            return None
        reached = commits.position(self._samples, App.id(topic_uuid, partition))
        return None if reached < 0 else reached

    def is_newest(self) -> bool:
        """Whether nothing was committed since."""
        return self._commits is not None and newest_commits(self.root) == self._commits

    def __getstate__(self) -> dict[str, object]:
        """For other processes: the files; they are not asked how far ``samples`` goes."""
        return {**self.__dict__, "_samples": None}
