"""The in-memory twin of :mod:`.disk`, for tests and simulation."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO, ENOENT, ENOSPC

from driftline.producers.disk import Folder


class MemoryDisk:
    """Folders in memory, for tests and simulation; faults by switches, which all views of the disk share.

    Each process of a simulation holds a view of its own (:meth:`another_process`); :meth:`die` gives back
    what it owns, as the kernel does.

    >>> ours = MemoryDisk(); theirs = ours.another_process()
    >>> ours.create("a").append("1.seg", b"abc")
    >>> theirs.claim("a") is None, theirs.owned("a"), theirs.look("a").read("1.seg", 1, 9)
    (True, True, b'bc')
    >>> ours.die(); theirs.claim("a").names()
    ['1.seg']
    """

    def __init__(self, shared: _Shared | None = None) -> None:
        self.where = "memory"
        self.faults = shared or _Shared()
        self._alive = True

    def another_process(self) -> MemoryDisk:
        """The same disk, seen by another process."""
        return MemoryDisk(self.faults)

    def die(self) -> None:
        """The process ends in whatever way: what it owns can be claimed, and it writes nothing any more."""
        self._alive = False
        self.faults.owners = {name: view for name, view in self.faults.owners.items() if view is not self}

    def names(self) -> list[str]:
        return sorted(self.faults.folders)

    def create(self, name: str) -> Folder:
        self.faults.check("create", 0)
        if name in self.faults.folders:
            raise FileExistsError(name)
        self.faults.folders[name] = {}
        self.faults.owners[name] = self
        return _MemoryFolder(self, name, owner=True)

    def claim(self, name: str) -> Folder | None:
        if name not in self.faults.folders or name in self.faults.owners:
            return None
        self.faults.owners[name] = self
        return _MemoryFolder(self, name, owner=True)

    def look(self, name: str) -> Folder:
        return _MemoryFolder(self, name, owner=False)

    def owned(self, name: str) -> bool:
        return name in self.faults.owners

    def free_bytes(self) -> int:
        return self.faults.free_bytes()


class _Shared:
    """What all views of a disk in memory share, and the faults that tests set."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, bytearray]] = {}
        self.owners: dict[str, MemoryDisk] = {}
        self.changed_us: dict[str, int] = {}
        """When each folder was last written; a test sets it."""
        self.space_bytes = 1 << 40
        """Size of the disk; what does not fit raises ENOSPC after as much as does fit was written."""
        self.broken = False
        """True: every change raises EIO."""
        self.unreadable = False
        """True: every read raises EIO."""
        self.tear: int | None = None
        """The next append writes so many bytes, then raises EIO."""
        self.before: Callable[[str, str, str], None] = lambda what, folder, file: None
        self.after: Callable[[str, str, str], None] = lambda what, folder, file: None
        """Called around every change (append, truncate, delete, remove); may raise, as a kill would."""

    def free_bytes(self) -> int:
        return self.space_bytes - sum(len(data) for files in self.folders.values() for data in files.values())

    def check(self, what: str, size: int) -> None:
        if self.broken:
            raise OSError(EIO, f"{what}: the disk is broken")
        if size and size > self.free_bytes():
            raise OSError(ENOSPC, f"{what}: no space left on the disk")


class _MemoryFolder:
    def __init__(self, disk: MemoryDisk, name: str, *, owner: bool) -> None:
        self.name = name
        self._owner = owner
        self._disk, self._faults = disk, disk.faults

    def names(self) -> list[str]:
        return sorted(self._files())

    def size(self, file: str) -> int:
        return len(self._file(file))

    def changed_us(self) -> int:
        return self._faults.changed_us.get(self.name, 0)

    def append(self, file: str, data: bytes) -> None:
        self._assert_ours()
        faults = self._faults
        faults.before("append", self.name, file)
        kept = self._files().setdefault(file, bytearray())
        if faults.tear is not None:
            kept += data[: faults.tear]
            faults.tear = None
            raise OSError(EIO, "append: torn")
        try:
            faults.check("append", len(data))
        except OSError:
            kept += b"" if faults.broken else data[: max(0, faults.free_bytes())]
            raise
        kept += data
        faults.after("append", self.name, file)

    def read(self, file: str, offset: int, size: int) -> bytes:
        if self._faults.unreadable:
            raise OSError(EIO, "read: the disk is broken")
        return bytes(self._file(file)[offset : offset + size])

    def truncate(self, file: str, size: int) -> None:
        self._change("truncate", file)
        del self._file(file)[size:]
        self._faults.after("truncate", self.name, file)

    def delete(self, file: str) -> None:
        self._change("delete", file)
        self._files().pop(file, None)
        self._faults.after("delete", self.name, file)

    def release(self) -> None:
        if self._owner and self._faults.owners.get(self.name) is self._disk:
            del self._faults.owners[self.name]

    def remove(self) -> None:
        self._assert_ours()
        self._faults.before("remove", self.name, "")
        if not self._faults.broken and not self._faults.folders.get(self.name):
            self._faults.folders.pop(self.name, None)
        self.release()
        self._faults.after("remove", self.name, "")

    def forget(self) -> None:
        return

    def _files(self) -> dict[str, bytearray]:
        try:
            return self._faults.folders[self.name]
        except KeyError:
            raise OSError(ENOENT, f"no folder {self.name}") from None

    def _file(self, file: str) -> bytearray:
        try:
            return self._files()[file]
        except KeyError:
            raise OSError(ENOENT, f"no file {file}") from None

    def _change(self, what: str, file: str) -> None:
        self._assert_ours()
        self._faults.before(what, self.name, file)
        self._faults.check(what, 0)

    def _assert_ours(self) -> None:
        assert self._disk._alive, f"a dead process writes to {self.name}"
        ours = self._owner and self._faults.owners.get(self.name) is self._disk
        assert ours, f"{self.name} is written by one who does not own it"
