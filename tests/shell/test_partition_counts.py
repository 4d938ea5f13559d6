"""Case S17: a topic with another partition count ends every role, with a line that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from driftline import admin

ROLES = ("streams", "scheduler", "sink", "evaluator")


def test_partition_counts_that_do_not_fit_end_every_role_with_one_line(embedded: Any, tmp_path: Path) -> None:
    """Exit code 2, which tells a supervisor not to start it again; one line; nothing is written."""
    settings = embedded.settings(partitions=8)
    topic = settings.topics["telemetry"]
    client = admin.connect(settings)
    client.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
    client.close()
    config = tmp_path / "driftline.yaml"
    config.write_text('evaluation: {suites: [{name: sums, target: "my_suites:sums"}]}')
    (tmp_path / "my_suites.py").write_text("def sums():\n    pass\n")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")},
        "DRIFTLINE_BOOTSTRAP": settings.bootstrap,
        "DRIFTLINE_PREFIX": settings.prefix,
        "DRIFTLINE_KAFKA__PARTITIONS": "8",
        "DRIFTLINE_STREAMS__STATE_DIR": str(tmp_path / "state"),
        "DRIFTLINE_STORAGE__ROOT": str(tmp_path / "root"),
    }
    started = {
        role: subprocess.Popen(
            [sys.executable, "-m", "driftline.cli", role, "--config", str(config)],
            env=environ,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
        )
        for role in ROLES
    }
    for role, process in started.items():
        _, said = process.communicate(timeout=300)
        assert process.returncode == 2, f"{role}: {said}"
        *before, line = said.splitlines()
        assert len(before) <= 1, f"{role}: {said}"  # the evaluator says first who it is
        assert topic in line
        assert "3 partitions" in line
        assert "set kafka.partitions" in line
        assert "kafka-topics.sh --delete" in line
