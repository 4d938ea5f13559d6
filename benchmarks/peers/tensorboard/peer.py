"""Writes the samples of a Parquet file as TensorBoard event files, one folder per run and rank, as
``SummaryWriter.add_scalar`` would: ``peer.py samples.parquet folder``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def main(source: str, folder: str) -> None:
    writers: dict[tuple[str, int], RecordWriter] = {}
    columns = ["run", "rank", "metric", "step", "time", "value"]
    for row in zip(*(column.to_pylist() for column in pq.read_table(source, columns=columns).columns), strict=True):
        run, rank, metric, step, time, value = row
        if (run, rank) not in writers:
            path = Path(folder) / run / str(rank)
            path.mkdir(parents=True)
            writers[run, rank] = RecordWriter((path / "events.out.tfevents.0").open("wb"))
        summary = Summary(value=[Summary.Value(tag=metric, simple_value=value)])
        event = Event(wall_time=time.timestamp(), step=step or 0, summary=summary)
        writers[run, rank].write(event.SerializeToString())
    for writer in writers.values():
        writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
