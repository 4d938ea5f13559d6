"""A core that forgives nothing, and a worker process that runs it.

Its state is a rolling hash over every record of the partition (offset, time, value) and a count per key; each
record gives one output that carries both. A record that is lost, applied twice, out of order, or with another
time changes every output after it.

    python toy.py           settings from DRIFTLINE_BOOTSTRAP, DRIFTLINE_PREFIX, TOY_*
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from driftline import events
from driftline.connection import KafkaSettings
from driftline.errors import BadData, BadRecord
from driftline.records import Output, OutputId, Record, decode
from driftline.settings import Settings, StreamsSettings
from driftline.topics import TopicName

CONFIG_BODY = b'{"toy":1}'


class ToyCore:
    """Rolling hash and counts; one output a record, on ``windows``."""

    def __init__(self, source: TopicName = "telemetry") -> None:
        self.source: TopicName = source

    def fresh(self, topic_uuid: str, partition: int) -> dict[str, Any]:
        return {"uuid": topic_uuid, "partition": partition, "hash": "", "counts": {}, "config": None}

    def prime(self, state: dict[str, Any], record: Record) -> None:
        pass  # its configuration changes no output

    def step(self, state: dict[str, Any], records: Sequence[Record]) -> list[Output]:
        return [self._one(state, record) for record in records]

    def gap(self, state: dict[str, Any], start: int, end: int) -> list[Output]:
        text = f"gap {start} {end}"
        return [self._output(state, start, 0, text, "gap")]

    def config_digest(self, state: dict[str, Any]) -> str | None:
        digest: str | None = state["config"]
        return digest

    def notices(self, state: dict[str, Any]) -> list[str]:
        return []

    def dump(self, state: dict[str, Any]) -> bytes:
        return json.dumps(state).encode()

    def load(self, data: bytes) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise BadData(str(error)) from error
        return state

    def _one(self, state: dict[str, Any], record: Record) -> Output:
        text = f"{record.offset} {record.time_ms} ".encode() + (record.value or b"-")
        try:
            event = decode(record.value)
        except BadRecord:
            event = None
        if isinstance(event, events.ConfigChanged):
            state["config"] = event.digest
        key = (record.value or b"").split(b":")[0].decode(errors="replace") if event is None else "event"
        return self._output(state, record.offset, record.time_ms, text.hex(), key)

    def _output(self, state: dict[str, Any], offset: int, time_ms: int, text: str, key: str) -> Output:
        state["hash"] = hashlib.sha256((state["hash"] + text).encode()).hexdigest()[:24]
        state["counts"][key] = state["counts"].get(key, 0) + 1
        this = OutputId(state["uuid"], state["partition"], offset, 0)
        body = {"id": str(this), "hash": state["hash"], "key": key, "count": state["counts"][key]}
        if key == "big":  # more than Kafka takes
            body["pad"] = "x" * 1_100_000
        return Output("windows", key, json.dumps(body | {"time_ms": time_ms}).encode(), this)


def settings(environ: dict[str, str]) -> Settings:
    kafka = KafkaSettings(
        bootstrap=environ["DRIFTLINE_BOOTSTRAP"],
        prefix=environ["DRIFTLINE_PREFIX"],
        partitions=int(environ.get("TOY_PARTITIONS", "2")),
    )
    streams = StreamsSettings(
        state_dir=environ["TOY_STATE_DIR"],
        snapshot_us=int(environ.get("TOY_SNAPSHOT_US", "500000")),
        session_timeout_us=int(environ.get("TOY_SESSION_US", "6000000")),
    )
    return msgspec.structs.replace(Settings(), kafka=kafka, streams=streams)


if __name__ == "__main__":
    from driftline.streams.shell import shell
    from driftline.streams.worker import run_core

    shell.TOPICS_S = float(os.environ.get("TOY_TOPICS_S", shell.TOPICS_S))

    sys.exit(run_core(ToyCore(), settings(dict(os.environ)), role="toy", config_body=CONFIG_BODY))
