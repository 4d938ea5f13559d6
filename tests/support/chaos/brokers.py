"""Strikes against the brokers of a cluster, whose topics have three copies."""

from __future__ import annotations

import threading
import time
from typing import Any, get_args

from kafka.errors import KafkaError

from driftline.connection import KafkaSettings
from driftline.topics import TopicName

from .schedule import Fault


class Brokers:
    """Kills, freezes and leaders that move, one at a time: with two brokers away nothing could be written,
    which ``tests/faults/test_outages.py`` tests.

    A broker comes back by a thread of its own, since whoever looks at the cluster meanwhile may have to wait
    for just that broker.
    """

    def __init__(self, cluster: Any, kafka: KafkaSettings) -> None:
        self._cluster = cluster
        self._topics = [kafka.topics[name] for name in get_args(TopicName)]
        self._back: threading.Thread | None = None
        self._failed: list[Exception] = []
        self._checked = True
        self._looked = 0.0

    def strike(self, fault: Fault) -> None:
        """One fault; the one before it is over and healed."""
        self._heal()
        node = self._cluster.nodes[fault.number]
        self._checked = False
        if fault.kind == "move":
            self._cluster.move_leaders(self._topics)
            return
        strike, again = {"kill": (node.kill, node.start), "pause": (node.pause, node.resume)}[fault.kind]
        strike()
        self._back = threading.Timer(fault.away_s, self._try, [again])
        self._back.start()

    def well(self) -> bool:
        """Whether every broker is back and every copy in sync. Raises what kept a broker away."""
        if self._back is not None and self._back.is_alive():
            return False
        self._back = None
        if self._failed:
            raise self._failed[0]
        if not self._checked and time.monotonic() - self._looked > 1.0:
            try:
                self._checked = all(self._cluster.in_sync(topic) for topic in self._topics)
            except KafkaError:  # nodes that come up
                pass
            self._looked = time.monotonic()
        return self._checked

    def close(self) -> None:
        """Waits until the one that is away is back."""
        if self._back is not None:
            self._back.join()

    def _heal(self) -> None:
        self._cluster.until(self.well, "all copies are in sync")

    def _try(self, again: Any) -> None:
        try:
            again()
        except Exception as error:  # noqa: BLE001 -- told by the thread that asks
            self._failed.append(error)
