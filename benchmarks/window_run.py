"""Runs one tool of ``windows.py`` on a loaded topic and measures it from outside.

Time is what the broker stamps on the tool's output, and the tool's own word of its first measured record; CPU
and memory are read from the operating system while it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

SAMPLE_S = 0.05
POLL_S = 0.25
START_S = 90.0


def peak_rss_mib(pid: int) -> int:
    """The most memory that a process has had. (``ru_maxrss`` of a child begins with its parent's.)"""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    return 0


class Worker:
    """A tool's process with a log of its CPU time; its output is read for JSON lines."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.told: dict[str, Any] = {}
        """What the process printed as JSON objects, merged."""
        self._log = log
        self._process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=log.open("wb"), text=True, cwd=log.parent
        )
        self._cpu: list[tuple[float, float]] = []
        self._rss_mib = 0
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._sample)]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        if self._process.poll() is not None:
            text = self._log.read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{self._process.args} ended with {self._process.returncode}: {text}")

    def cpu_s(self, begin_ms: float, end_ms: float) -> float:
        """CPU seconds of the process between two moments of the wall clock."""
        at, spent = np.array(self._cpu).T
        return float(np.interp(end_ms, at, spent) - np.interp(begin_ms, at, spent))

    @property
    def rss_mib(self) -> int:
        return self._rss_mib

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    self.told |= found

    def _sample(self) -> None:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            process = psutil.Process(self._process.pid)
            while self._process.poll() is None:
                times = process.cpu_times()
                self._cpu.append((time.time_ns() / 1e6, times.user + times.system))
                self._rss_mib = max(self._rss_mib, peak_rss_mib(process.pid))
                time.sleep(SAMPLE_S)


class Item(NamedTuple):
    """A record that a tool put out."""

    time_ms: int
    """When the broker took it."""
    key: bytes
    value: bytes


class Topics:
    """Topics of one broker, made and read."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=[bootstrap])
        self._consumer = KafkaConsumer(
            bootstrap_servers=[bootstrap],
            fetch_max_bytes=64 << 20,
            max_partition_fetch_bytes=16 << 20,
            max_poll_records=20_000,
            allow_auto_create_topics=False,
        )

    def make(self, name: str, *, append_time: bool, partitions: int = 1) -> None:
        kind = "LogAppendTime" if append_time else "CreateTime"
        configs = {"message.timestamp.type": kind, "retention.ms": "-1"}
        with contextlib.suppress(TopicAlreadyExistsError):
            self._admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])

    def stamp_from_now_on(self, name: str) -> None:
        """The broker dates what comes; what is there keeps the times it has."""
        configs = {"message.timestamp.type": "LogAppendTime"}
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs)])

    def drop(self, *names: str) -> None:
        self._admin.delete_topics(list(names))

    def end(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        return int(self._consumer.end_offsets([place])[place])

    def read(self, topic: str, partition: int) -> list[Item]:
        """All records of a partition."""
        place = TopicPartition(topic, partition)
        self._consumer.assign([place])
        self._consumer.seek_to_beginning(place)
        end, items = self.end(topic, partition), []
        while self._consumer.position(place) < end:
            for records in self._consumer.poll(1_000).values():
                items += [Item(r.timestamp, r.key or b"", r.value or b"") for r in records]
        return items

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()


def until_quiet(
    topics: Topics,
    worker: Worker,
    topic: str,
    partition: int,
    *,
    wanted: int | None,
    quiet_s: float,
    limit_s: float,
) -> None:
    """Until the output has ``wanted`` records, or has had no new one for ``quiet_s`` after its first.

    Raises RuntimeError if the worker ends, or puts out nothing within the limit.
    """
    begin = changed = time.monotonic()
    last = 0
    while wanted is None or last < wanted:
        worker.check()
        found = topics.end(topic, partition)
        now = time.monotonic()
        if found != last:
            last, changed = found, now
        if last and now - changed > quiet_s:
            return
        if now - begin > limit_s:
            if not last:
                raise RuntimeError(f"nothing in {topic} within {limit_s} s")
            return
        time.sleep(POLL_S)


@contextlib.contextmanager
def closing_messages(bootstrap: str, topic: str, key: bytes, value: bytes, time_ms: int) -> Iterator[None]:
    """Messages dated behind the stream, ten a second, each a millisecond later: event time goes on."""
    stop = threading.Event()
    producer = KafkaProducer(bootstrap_servers=[bootstrap], acks=1)

    def send() -> None:
        at = time_ms
        while not stop.wait(0.1):
            at += 1
            producer.send(topic, value, key=key, partition=0, timestamp_ms=at)
            producer.flush()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.close()


def role_environment(bootstrap: str, prefix: str, settings: Path, data: Path) -> dict[str, str]:
    """What driftline's worker gets."""
    return os.environ | {
        "DRIFTLINE_BOOTSTRAP": bootstrap,
        "DRIFTLINE_PREFIX": prefix,
        "DRIFTLINE_CONFIG": str(settings),
        "DRIFTLINE_STORAGE__ROOT": str(data),
        "DRIFTLINE_STREAMS__STATE_DIR": str(data / "streams"),
    }
