"""The disk as the spool sees it: folders of append-only files, one owner each.

A :class:`Disk` holds *folders*, one per spool. Whoever creates or claims a folder owns it, alone, until it
lets go or dies: on a real disk by ``flock`` on the file ``lock`` in it, which the kernel gives back when the
process ends, however it ends. All operations may raise OSError (full, read-only, gone); ``append`` may then
have written a part, which the owner cuts off again with ``truncate``.

    disk = FileDisk("/var/spool/driftline")          # in memory: memory_disk.MemoryDisk()
    folder = disk.create("a")                        # ours, until release() or remove()
    folder.append("00000001.seg", b"...")
    disk.claim("a") is None                          # from any other process, as long as we live

``flock`` must work on the file system: it does on local ones and on NFS version 4. Where it raises an error
(some Lustre mounts), there is no spool; where it only works within each host (NFS mounted with ``nolock``),
hosts must not share the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from errno import EINVAL, ENOTSUP
from typing import Protocol

try:
    import fcntl
except ImportError:  # a system without flock: nothing can be claimed, so nothing is spooled
    fcntl = None  # type: ignore[assignment]

_LOCK = "lock"


class Folder(Protocol):
    """The files of one spool."""

    name: str

    def names(self) -> list[str]:
        """Files in it, sorted."""
        ...

    def size(self, file: str) -> int: ...

    def changed_us(self) -> int:
        """When a file in it was last written, microseconds since 1970; 0 if there is none."""
        ...

    def append(self, file: str, data: bytes) -> None:
        """Writes at the end, all of it, and hands it to the kernel; makes the file."""
        ...

    def read(self, file: str, offset: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer at the end."""
        ...

    def truncate(self, file: str, size: int) -> None: ...

    def delete(self, file: str) -> None: ...

    def release(self) -> None:
        """Lets go of the folder; its files stay. Never raises."""
        ...

    def remove(self) -> None:
        """Lets go of the folder, which holds no files any more, and takes it away. Never raises."""
        ...

    def forget(self) -> None:
        """In a forked child: lets go of what the parent goes on to own."""
        ...


class Disk(Protocol):
    """A place for spools."""

    where: str
    """In words for people: a path."""

    def names(self) -> list[str]:
        """Folders, sorted; none if the place does not exist."""
        ...

    def create(self, name: str) -> Folder:
        """A new folder, owned by the caller."""
        ...

    def claim(self, name: str) -> Folder | None:
        """An existing folder, now owned by the caller; None if somebody alive owns it, or it is gone."""
        ...

    def look(self, name: str) -> Folder:
        """An existing folder for reading only, whoever owns it; to be released as well."""
        ...

    def owned(self, name: str) -> bool:
        """Whether somebody alive owns it."""
        ...

    def free_bytes(self) -> int: ...


def place(named: str | None, env: Mapping[str, str]) -> str:
    """The folder of the spools: as the settings name it, else in the user's state directory.

    >>> place(None, {"XDG_STATE_HOME": "/state"}), place(None, {"HOME": "/home/ada"})
    ('/state/driftline/spool', '/home/ada/.local/state/driftline/spool')
    """
    if named:
        return os.path.expanduser(named)
    state = env.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "driftline", "spool")


class FileDisk:
    """Folders below a path, which is made (for its user only) when the first spool is."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = os.path.abspath(os.fspath(path))

    def names(self) -> list[str]:
        try:
            with os.scandir(self.where) as found:
                return sorted(e.name for e in found if not e.name.startswith(".") and e.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, name: str) -> Folder:
        os.makedirs(self.where, mode=0o700, exist_ok=True)
        # Made under a name that nobody looks at, so that nobody claims it before it is locked.
        hidden = os.path.join(self.where, f".{name}.{os.getpid()}")
        shutil.rmtree(hidden, ignore_errors=True)
        os.mkdir(hidden, 0o700)
        lock = None
        try:
            lock = _locked(os.path.join(hidden, _LOCK))
            assert lock is not None, "a fresh file is locked by no one"
            os.rename(hidden, os.path.join(self.where, name))
        except BaseException:
            if lock is not None:  # tried again each second, for as long as the outage lasts
                os.close(lock)
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        return _FileFolder(self.where, name, lock)

    def claim(self, name: str) -> Folder | None:
        path = os.path.join(self.where, name, _LOCK)
        try:
            lock = _locked(path)
        except FileNotFoundError:
            return None
        if lock is None:
            return None
        try:
            ours = os.path.samestat(os.fstat(lock), os.stat(path))
        except FileNotFoundError:
            ours = False
        except BaseException:
            os.close(lock)
            raise
        if not ours:  # its owner removed it meanwhile
            os.close(lock)
            return None
        return _FileFolder(self.where, name, lock)

    def look(self, name: str) -> Folder:
        return _FileFolder(self.where, name, None)

    def owned(self, name: str) -> bool:
        folder = self.claim(name)
        if folder is None:
            return os.path.isdir(os.path.join(self.where, name))
        folder.release()
        return False

    def free_bytes(self) -> int:
        path = self.where
        while not os.path.isdir(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        return shutil.disk_usage(path).free


def _opened(path: str, flags: int) -> int:
    """A descriptor of a plain file; a link is not followed, a pipe or a device waited for by no one."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(EINVAL, f"{path} is no plain file")
    return descriptor


def _locked(path: str) -> int | None:
    """A descriptor that holds the lock of a file, which is made; None if another one holds it."""
    if fcntl is None:
        raise OSError(ENOTSUP, "this system has no file locks")
    lock = _opened(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


class _FileFolder:
    """Keeps the file that is written and the one that was read last open."""

    def __init__(self, root: str, name: str, lock: int | None) -> None:
        self.name = name
        self._path = os.path.join(root, name)
        self._lock = lock
        self._open: dict[bool, tuple[str, int]] = {}

    def names(self) -> list[str]:
        # NFS keeps deleted files that are open under names with a dot.
        return sorted(file for file in os.listdir(self._path) if file != _LOCK and file[0] != ".")

    def size(self, file: str) -> int:
        return os.stat(os.path.join(self._path, file)).st_size

    def changed_us(self) -> int:
        times = [os.stat(os.path.join(self._path, file)).st_mtime_ns for file in self.names()]
        return max(times, default=0) // 1000

    def append(self, file: str, data: bytes) -> None:
        descriptor = self._descriptor(file, write=True)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def read(self, file: str, offset: int, size: int) -> bytes:
        found = os.pread(self._descriptor(file, write=False), size, offset)
        while len(found) < size:
            more = os.pread(self._descriptor(file, write=False), size - len(found), offset + len(found))
            if not more:
                break
            found += more
        return found

    def truncate(self, file: str, size: int) -> None:
        os.ftruncate(self._descriptor(file, write=True), size)

    def delete(self, file: str) -> None:
        for write, (opened, descriptor) in list(self._open.items()):
            if opened == file:
                del self._open[write]
                os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._path, file))

    def release(self) -> None:
        held = [descriptor for _, descriptor in self._open.values()]
        self._open.clear()
        if self._lock is not None:
            held.append(self._lock)
            self._lock = None
        for descriptor in held:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._path, _LOCK))
            os.rmdir(self._path)
        self.release()

    def forget(self) -> None:
        # The lock belongs to the open file that parent and child share: to close ours leaves the parent's,
        # and a child that kept it would make a dead parent look alive.
        self.release()

    def _descriptor(self, file: str, *, write: bool) -> int:
        opened = self._open.get(write)
        if opened is not None and opened[0] == file:
            return opened[1]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
        descriptor = _opened(os.path.join(self._path, file), flags)
        if opened is not None:
            os.close(opened[1])
        self._open[write] = file, descriptor
        return descriptor
