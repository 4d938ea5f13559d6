"""What wakes a thread of the SDK before its time."""

from __future__ import annotations

import threading


class Bell:
    """Wakes the thread. ``ring`` takes no lock that a signal handler could find taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # rung already

    def wait(self, timeout_us: int) -> bool:
        """True if it rang."""
        return self._lock.acquire(timeout=max(0, timeout_us) / 1e6)
