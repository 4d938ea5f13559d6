"""Who speaks: run, process, rank, world size, local rank, host, role. Pure: facts in, :class:`Identity` out.

What is said explicitly wins, then what torch.distributed says (rank and world size only), then the
environment, in the order of the tables below (``RANK`` before MPI before SLURM, because SLURM's variables may
be set where SLURM did not start the processes). Empty values, and numbers that do not parse, count as absent.

The run id, in this order:

1. ``resume=`` or ``run_id=``, then ``DRIFTLINE_RUN_ID``;
2. the launcher's: ``TORCHELASTIC_RUN_ID`` (its default "none" counts as absent), ``WANDB_RUN_ID``,
   ``MLFLOW_RUN_ID``, ``SLURM_JOB_ID`` (with array task and step, so that two ``srun`` of one job are two
   runs);
3. one that the ranks agree on through the process group (``shared``);
4. a new one for this process alone.

An id may come from anywhere and ends up in file names and keys, so one rule holds for all (:func:`safe_id`).
The free-text *name* of a run is never part of an id or a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]{0,127}")
MAX_NAME_CHARS = 1000

RANK_VARIABLES = (
    "RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "JSM_NAMESPACE_RANK",
)
WORLD_VARIABLES = (
    "WORLD_SIZE",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_NTASKS",
)
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)

RunSource = Literal["argument", "environment", "group", "own"]


class Identity(NamedTuple):
    """Who an SDK process is."""

    run: str
    run_source: RunSource
    """Where the run id came from; "own" means that no other process can know it."""
    process: str
    rank: int | None
    world_size: int | None
    local_rank: int | None
    host: str
    role: str
    restart_hint: int | None
    """The launcher's restart count (``TORCHELASTIC_RESTART_COUNT``); ranks may disagree."""

    @property
    def alone(self) -> bool:
        """True if other ranks exist that this process shares no run id with."""
        return self.run_source == "own" and ((self.world_size or 1) > 1 or bool(self.rank))


class Told(NamedTuple):
    """What the caller said explicitly; None means nothing."""

    run: str | None = None
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    role: str = "trainer"


class Group(NamedTuple):
    """What an initialised torch.distributed says."""

    rank: int
    world_size: int


def new_run_id(*, now_us: int, entropy: bytes) -> str:
    """26 characters, sortable by time (milliseconds, then randomness), lower case: a ULID.

    ``entropy``: at least 10 bytes, from ``os.urandom`` (the ``random`` module is seeded by trainers).

    >>> new_run_id(now_us=1_700_000_000_000_000, entropy=bytes(10))
    '01hf7yat000000000000000000'
    """
    number = (now_us // 1000) % (1 << 48) << 80 | int.from_bytes(entropy[:10], "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -5, -5))


def new_process_id(entropy: bytes) -> str:
    """12 characters of randomness; ``entropy``: at least 8 bytes.

    >>> new_process_id(bytes(range(8)))
    '000g40r40m30'
    """
    number = int.from_bytes(entropy[:8], "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(59, -1, -5))


def safe_id(text: str) -> str:
    """``text`` where it can be an id as it stands, else a hash of it: every rank gets the same.

    An id has 1 to 128 of letters, digits and ``_.:=+-`` and starts with a letter, digit or underscore.

    >>> safe_id("exp-7.rank_0"), safe_id("a/../../b")
    ('exp-7.rank_0', 'id-feddf1677abcb2f8517b3882')
    """
    if _SAFE_ID.fullmatch(text) and ".." not in text:
        return text
    return "id-" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def launcher_run_id(env: Mapping[str, str]) -> str | None:
    """The run id that the environment gives, checked by :func:`safe_id`; None if it gives none.

    >>> launcher_run_id({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"})
    'slurm-77.2'
    """
    for variable in ("DRIFTLINE_RUN_ID", "TORCHELASTIC_RUN_ID", "WANDB_RUN_ID", "MLFLOW_RUN_ID"):
        value = env.get(variable, "").strip()
        if value and not (variable == "TORCHELASTIC_RUN_ID" and value.lower() == "none"):
            return safe_id(value)
    job = env.get("SLURM_JOB_ID", "").strip()
    if not job:
        return None
    task, step = env.get("SLURM_ARRAY_TASK_ID", "").strip(), env.get("SLURM_STEP_ID", "").strip()
    return safe_id("slurm-" + job + (f"_{task}" if task else "") + (f".{step}" if step else ""))


def number_from(env: Mapping[str, str], variables: tuple[str, ...]) -> int | None:
    """The first of the variables that holds a whole number that is not negative.

    >>> number_from({"RANK": "", "PMI_RANK": "x", "SLURM_PROCID": "3"}, RANK_VARIABLES)
    3
    """
    for variable in variables:
        value = env.get(variable, "").strip()
        if value.isascii() and value.isdigit():
            return int(value)
    return None


def resolve(
    told: Told,
    env: Mapping[str, str],
    *,
    group: Group | None,
    host: str,
    process: str,
    shared: Callable[[], str | None],
    fresh: Callable[[], str],
) -> Identity:
    """Puts the identity together; ``shared`` asks the process group for an id, ``fresh`` makes one.

    Both are called only if nothing before them in the order of this module's docstring gave an id.
    """
    run, source = _run_id(told, env, shared, fresh)
    rank, world_size, local_rank = told.rank, told.world_size, told.local_rank
    if rank is None:
        rank = group.rank if group else number_from(env, RANK_VARIABLES)
    if world_size is None:
        world_size = group.world_size if group else number_from(env, WORLD_VARIABLES)
    if local_rank is None:
        local_rank = number_from(env, LOCAL_RANK_VARIABLES)
    return Identity(
        run=run,
        run_source=source,
        process=process,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        host=host,
        role=told.role,
        restart_hint=number_from(env, ("TORCHELASTIC_RESTART_COUNT",)),
    )


def _run_id(
    told: Told, env: Mapping[str, str], shared: Callable[[], str | None], fresh: Callable[[], str]
) -> tuple[str, RunSource]:
    if told.run:
        return safe_id(told.run), "argument"
    given = launcher_run_id(env)
    if given:
        return given, "environment"
    agreed = shared()
    if agreed:
        return safe_id(agreed), "group"
    return fresh(), "own"
