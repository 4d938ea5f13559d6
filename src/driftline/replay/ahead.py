"""Reads ahead: an iterator is run by a thread of its own, a few items before whoever takes them.

Decoding Parquet and the loops of the pipeline let other threads run, so a replay takes about as long as the
slower of the two. The order of the items is that of the iterator, what it raises is raised here.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
ITEMS = 2
"""What waits at most; the iterator holds one more."""


@contextlib.contextmanager
def ahead(items: Iterator[T], most: int = ITEMS) -> Iterator[Iterator[T]]:
    """The same items. The thread ends with the block.

    >>> with ahead(iter(range(3))) as found:
    ...     list(found)
    [0, 1, 2]
    """
    waiting: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(most)
    over = threading.Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not over.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put((item, error), timeout=0.1)
                return True
        return False

    def read() -> None:
        try:
            for item in items:
                if not put(item, None):
                    break
            else:
                put(None, StopIteration())
        except BaseException as error:  # noqa: BLE001  raised where the items are taken
            put(None, error)
        finally:
            if close := getattr(items, "close", None):
                close()

    def take() -> Iterator[T]:
        while True:
            item, error = waiting.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item

    thread = threading.Thread(target=read, name="driftline-replay-ahead", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        over.set()
        thread.join()
