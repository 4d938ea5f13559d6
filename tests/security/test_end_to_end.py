"""The whole of Driftline through TLS and a login, with every log switched on: all works, no secret shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from kafka import KafkaConsumer, TopicPartition

import driftline
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.demo import model
from driftline.settings import SdkSettings, Settings
from driftline.topics import SPECS

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


def everything_in(settings: KafkaSettings) -> Iterator[bytes]:
    """Key and value of every record of every topic."""
    consumer = KafkaConsumer(enable_auto_commit=False, auto_offset_reset="earliest", **kafka_python(settings))
    try:
        for spec in SPECS:
            topic = settings.topics[spec.name]
            spots = [TopicPartition(topic, at) for at in consumer.partitions_for_topic(topic)]
            consumer.assign(spots)
            ends = consumer.end_offsets(spots)
            while any(consumer.position(spot) < ends[spot] for spot in spots):
                for records in consumer.poll(timeout_ms=200).values():
                    yield from (part for record in records for part in (record.key, record.value) if part)
    finally:
        consumer.close()


def cells(root: Path) -> Iterator[str]:
    """Every row of every Parquet file, and every other file as it is."""
    for path in sorted(root.rglob("*")):
        if path.suffix == ".parquet":
            yield str(pyarrow.parquet.read_table(path).to_pylist())
        elif path.is_file():
            yield path.read_bytes().decode(errors="replace")


def test_every_part_works_through_tls_and_a_password_that_never_leaves_the_process(
    secure_kafka: Any, support: Any, parts: Callable[..., Any]
) -> None:
    """With every log switched on; searched are logs, command lines, topics (so snapshots), tables."""
    made, shared = support("secure_kafka"), support("parts")
    ask, until = shared.ask, shared.until
    settings = secure_kafka.sasl("scram.", sasl_mechanism="SCRAM-SHA-256")
    here = parts(
        support("parts").written(settings),
        DRIFTLINE_LOG="debug",
        DRIFTLINE_KAFKA__SASL_PASSWORD=made.PASSWORD,
    )
    for role in ("streams", "scheduler", "sink", "evaluator"):
        here.start(role, "--log-level", "debug")
    model.save(model.Adder(width=8, layers=1, heads=1), here.folder / "step-200")
    trained = here.python("-c", support("parts").TRAINING, "step-200")
    assert trained.returncode == 0, trained.stderr
    root = here.folder / "driftline-data"
    until(lambda: ask(root, "SELECT status FROM evals"), "the checkpoint's evaluation is stored")
    command_lines = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in here.running.values()]
    watched = here.run("watch", "--once", "--log-level", "debug")
    shown = here.run("config", "show")
    for role in ("evaluator", "scheduler", "streams", "sink"):
        assert here.stop(role) == 0
    assert ask(root, "SELECT count(*), count(DISTINCT step) FROM samples") == [(200, 200)]
    assert ask(root, "SELECT DISTINCT status FROM evals") == [("done",)]
    assert "secured" in watched.stdout
    assert "step 199" in watched.stdout

    texts = {
        "logs": here.told(10_000_000),
        "SDK": trained.stdout + trained.stderr,
        "watch": watched.stdout + watched.stderr,
        "config show": shown.stdout + shown.stderr,
        "command lines": b"".join(command_lines).decode(),
        "tables": "".join(cells(root)),
        "topics": b"".join(everything_in(settings)).decode(errors="replace"),
        "settings": repr(settings),
    }
    assert [where for where, text in texts.items() if made.PASSWORD in text] == []
    assert "Authenticated as trainer" in texts["logs"], "debug logs of the clients were really written"
    assert len(texts["topics"]) > 10_000


def test_a_client_certificate_with_a_locked_key_works_for_every_kind_of_client(
    secure_kafka: Any, support: Any, parts: Callable[..., Any], tmp_path: Path
) -> None:
    """kafka-python in SDK and sink, Faust and aiokafka in the stream worker."""
    made, shared = support("secure_kafka"), support("parts")
    ask, until = shared.ask, shared.until
    settings = secure_kafka.mutual(
        "mutual.", ssl_keyfile=str(secure_kafka.authority.locked_key), ssl_key_password=made.KEY_PASSWORD
    )
    file = tmp_path / "key-password"
    file.write_text(made.KEY_PASSWORD + "\n")
    here = parts(shared.written(settings), DRIFTLINE_KAFKA__SSL_KEY_PASSWORD_FILE=str(file))
    here.start("streams")
    here.start("sink")
    run = driftline.init(settings=Settings(kafka=settings, sdk=SdkSettings(system=())), rank=0)
    run.log({"loss": 1.0}, step=1)
    assert run.flush(240), run.counters()
    run.finish()
    root = here.folder / "driftline-data"
    until(lambda: ask(root, "SELECT * FROM facts"), "the stream worker's facts are stored")
    assert ask(root, "SELECT metric, value FROM samples") == [("loss", 1.0)]
    assert (here.stop("streams"), here.stop("sink")) == (0, 0)


def test_a_password_sent_plainly_through_tls_works(secure_kafka: Any) -> None:
    settings = secure_kafka.sasl("plain.")
    ensure_topics(settings)
    run = driftline.init(settings=Settings(kafka=settings, sdk=SdkSettings(system=())), rank=0)
    run.log({"loss": 1.0}, step=1)
    assert run.flush(240), run.counters()
    run.finish()
