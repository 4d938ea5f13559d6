"""The settings of a seed: small windows and short times, so that a minute holds a whole life."""

from __future__ import annotations

import msgspec

from driftline import events
from driftline.config import AggregateSpec, Derived, PipelineConfig, SchedulerConfig, Triggers, WindowSpec
from driftline.connection import KafkaSettings
from driftline.settings import SdkSettings, Settings, StorageSettings, StreamsSettings

from .faults import Chance

PARTITIONS = 2


def settings_of(seed: int) -> Settings:
    """Some of them are drawn by the seed."""
    chance = Chance(seed, "settings")
    suites = [events.SuiteRef(name=name, target="sim:suite") for name in ("small", "large")]
    settings = Settings(
        kafka=KafkaSettings(bootstrap="sim", partitions=PARTITIONS),
        sdk=SdkSettings(
            flush_us=chance.choice((200_000, 500_000)),
            frame_samples=chance.choice((6, 50)),
            heartbeat_us=300_000,
            exit_us=3_000_000,
            buffer_bytes=chance.choice((8_000, 200_000)),
            spool_bytes=chance.choice((0, 20_000, 1_000_000)),
            spool_reserve_bytes=0,
            protect_bytes=0,  # its checkpoints have no files
            queue_samples=200,
            system=(),
        ),
        streams=StreamsSettings(
            snapshot_us=chance.choice((500_000, 1_500_000, 4_000_000)),
            batch_records=chance.choice((20, 100, 500)),
            batch_wait_us=chance.choice((20_000, 200_000)),
        ),
        storage=StorageSettings(commit_us=chance.choice((500_000, 2_000_000))),
        pipeline=PipelineConfig(
            windows=[WindowSpec("time", 10_000_000, 5_000_000), WindowSpec("step", 20, 10)],
            per_rank=["loss"] if chance.hit(0.3) else [],
            triggers=Triggers(steps=chance.choice((10, 25)), at_start=chance.hit(0.5)),
            suites=suites[: chance.randrange(1, 3)],
            allowed_lateness_us=chance.choice((1_000_000, 2_000_000)),
            idle_us=8_000_000,
            expire_us=40_000_000,
            hole_us=6_000_000,
            start_grace_us=10_000_000,
        ),
        scheduler=SchedulerConfig(
            lease_us=6_000_000, present_us=4_000_000, starve_us=20_000_000, hole_us=6_000_000, retries=2
        ),
    )
    return msgspec.structs.replace(settings, pipeline=_richer(settings.pipeline, chance))


def _richer(pipeline: PipelineConfig, chance: Chance) -> PipelineConfig:
    """Half of the seeds have derived metrics, the window of the whole run and aggregates too."""
    if not chance.hit(0.5):
        return pipeline
    return msgspec.structs.replace(
        pipeline,
        windows=[*pipeline.windows, WindowSpec("step", 0, 30)],
        derived=[
            Derived(name="loss_rate", kind="rate", of="loss"),
            Derived(name="smooth", kind="ema", of="loss", half_life_steps=10),
            Derived(name="apart", kind="spread", of="loss"),
            Derived(name="ratio", kind="ratio", of="loss", per="smooth"),
        ],
        weighted_quantiles={"loss": [0.5]},
        aggregates=[AggregateSpec(name="geo", target="geometric_mean", metrics=["loss", "apart"])],
    )
