"""Who a process is, from what it was told, the process group and the environment."""

from __future__ import annotations

import pytest

from driftline import identity
from driftline.identity import Group, Told


def resolve(
    env: dict[str, str] | None = None,
    told: Told = Told(),
    group: Group | None = None,
    shared: str | None = None,
) -> identity.Identity:
    return identity.resolve(
        told, env or {}, group=group, host="h", process="p", shared=lambda: shared, fresh=lambda: "fresh"
    )


@pytest.mark.parametrize(
    ("env", "told", "shared", "run", "source"),
    [
        ({}, Told(), None, "fresh", "own"),
        ({}, Told(), "agreed", "agreed", "group"),
        ({"DRIFTLINE_RUN_ID": "r1", "TORCHELASTIC_RUN_ID": "t"}, Told(), "agreed", "r1", "environment"),
        ({"TORCHELASTIC_RUN_ID": "t1", "SLURM_JOB_ID": "7"}, Told(), None, "t1", "environment"),
        ({"TORCHELASTIC_RUN_ID": "none"}, Told(), None, "fresh", "own"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, Told(), None, "slurm-7", "environment"),
        ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, Told(), None, "slurm-7_3", "environment"),
        ({"DRIFTLINE_RUN_ID": "  "}, Told(), None, "fresh", "own"),
        ({"DRIFTLINE_RUN_ID": "r1"}, Told(run="said"), "agreed", "said", "argument"),
        ({"WANDB_RUN_ID": "w1", "MLFLOW_RUN_ID": "m1"}, Told(), None, "w1", "environment"),
    ],
)
def test_run_id_comes_from_the_first_that_gives_one(
    env: dict[str, str], told: Told, shared: str | None, run: str, source: str
) -> None:
    found = resolve(env, told, shared=shared)
    assert (found.run, found.run_source) == (run, source)


@pytest.mark.parametrize(
    ("env", "group", "told", "rank", "world"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0"}, None, Told(), 3, 8),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, None, Told(), 5, 6),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "OMPI_COMM_WORLD_RANK": "9"}, None, Told(), 1, 2),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Group(1, 2), Told(), 1, 2),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Group(1, 2), Told(rank=0, world_size=64), 0, 64),
        ({"RANK": "x", "WORLD_SIZE": "-1"}, None, Told(), None, None),
        ({}, None, Told(), None, None),
    ],
)
def test_rank_and_world_size(
    env: dict[str, str], group: Group | None, told: Told, rank: int | None, world: int | None
) -> None:
    found = resolve(env, told, group)
    assert (found.rank, found.world_size) == (rank, world)


def test_local_rank_and_restart_hint() -> None:
    found = resolve({"LOCAL_RANK": "2", "TORCHELASTIC_RESTART_COUNT": "1"})
    assert (found.local_rank, found.restart_hint) == (2, 1)


@pytest.mark.parametrize(
    ("env", "shared", "alone"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "agreed", False),
        ({"RANK": "1", "WORLD_SIZE": "2", "DRIFTLINE_RUN_ID": "r"}, None, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None, False),
        ({}, None, False),
    ],
)
def test_only_ranks_without_a_common_id_are_alone(
    env: dict[str, str], shared: str | None, alone: bool
) -> None:
    assert resolve(env, shared=shared).alone is alone


def test_run_ids_sort_by_time_and_do_not_repeat() -> None:
    made = [identity.new_run_id(now_us=t * 1000, entropy=bytes([255 - t] * 10)) for t in range(1, 200)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(len(run) == 26 and run == run.lower() and identity.safe_id(run) == run for run in made)


@pytest.mark.parametrize("text", ["a/../../b", "/etc/x", "..", "a b", "", "x" * 129, ".hidden", "a\0b", "准"])
def test_an_id_that_could_leave_the_root_becomes_a_hash_of_it(text: str) -> None:
    safe = identity.safe_id(text)
    assert safe.startswith("id-")
    assert "/" not in safe
    assert ".." not in safe
    assert safe == identity.safe_id(text)
