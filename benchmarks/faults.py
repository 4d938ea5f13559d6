"""Kills, pauses and restarts real processes on a real Kafka at random, and counts what is lost. Aim: nothing.

    .venv/bin/python benchmarks/faults.py --kills N [--seed S] [--of-each 1|2] [--brokers 3] [--json]

Starts one of each role (stream worker, scheduler, sink, evaluator), from half of the faults on two of each,
and ranks: twelve raw ones that send small frames, 1,000 a second together as long as the pipeline can follow,
and runs of two ranks that use the SDK and save checkpoints. Then it strikes N times at random: kill -9 and a
new start, SIGSTOP for longer than the session and SIGCONT, or SIGTERM and a new start. The broker is
``DRIFTLINE_TEST_BOOTSTRAP``, else Apache Kafka in a JVM. ``--brokers 3``: three of them with three copies of
each partition, of which two must take a record; a third of the faults then kills or freezes a broker, or
moves all leaders.
At the end everything is compared (see ``tests/support/chaos/judge.py``): topics with the pure pipeline and
scheduler over the recorded logs, byte for byte, a part of the windows with the naive oracle, tables with
topics, topics with what the ranks sent.

Prints what it does, then ``kills``, ``accepted``, ``stored``, ``lost``, ``doubled``, ``contradictions`` and
more (``Report`` in ``tests/support/chaos/plan.py`` says what each is); the last line is all of it as JSON
(with ``--json`` the only line on standard output). Exit code 0 if nothing was lost, doubled, contradicting or
otherwise different, else 1; then the folder with settings, tables and the logs of all processes stays.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import load


@contextlib.contextmanager
def _kafka(brokers: int) -> Iterator[tuple[str, Any]]:
    """The addresses, and the cluster if its brokers can be struck."""
    if brokers == 1 and (bootstrap := os.environ.get("DRIFTLINE_TEST_BOOTSTRAP")):
        yield bootstrap, None
        return
    support = load("jvm_kafka")
    with support.JvmKafka() if brokers == 1 else support.JvmCluster(nodes=brokers) as broker:
        yield broker.bootstrap, None if brokers == 1 else broker


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=15, help="faults (default 15, about 5 minutes)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="chooses the faults")
    parser.add_argument("--of-each", type=int, choices=(0, 1, 2), default=0, help="processes of each role")
    parser.add_argument("--rate", type=int, default=1_000, help="frames a second of the raw ranks")
    parser.add_argument("--ahead", type=int, default=15_000, help="frames that the ranks may be ahead")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="JVMs to start")
    parser.add_argument("--json", action="store_true", help="only the JSON line on standard output")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that what was started is ended
    chaos = load("chaos")
    from driftline.connection import KafkaSettings

    def say(line: str) -> None:
        print(time.strftime("%H:%M:%S"), line, file=sys.stderr if asked.json else sys.stdout, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="driftline-faults-"))
    with _kafka(asked.brokers) as (bootstrap, cluster):
        kafka = KafkaSettings(
            bootstrap=bootstrap,
            prefix=f"faults{os.getpid()}.",
            partitions=chaos.plan.PARTITIONS,
            replication=asked.brokers,
        )
        say(f"seed {asked.seed}, everything is in {folder}")
        report = chaos.run(
            chaos.Plan(
                kafka=kafka,
                folder=folder,
                kills=asked.kills,
                seed=asked.seed,
                of_each=asked.of_each,
                frames_per_s=asked.rate,
                ahead=asked.ahead,
                cluster=cluster,
                say=say,
            )
        )
    for problem in report.problems:
        say(f"PROBLEM {problem}")
    if not asked.json:
        for name, value in report.totals().items():
            print(f"{name:15} {value}")
    print(report.json())
    if report.clean:
        shutil.rmtree(folder)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
