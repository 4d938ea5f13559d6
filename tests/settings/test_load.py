"""The settings file and the environment: what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from driftline.config import DEFAULT_DETECTORS, PipelineConfig, Rule, Triggers, WindowSpec
from driftline.events import SuiteRef
from driftline.settings import Settings, load
from driftline.settings_docs import in_effect

KNOWN = Path(__file__).parents[1] / "golden" / "settings_known.yaml"
MORE = """
storage: {root: ./elsewhere}
windows: [{axis: time, size: 10s, every: 1s}, {axis: step, size: 50, every: 1}]
alerting:
  rules: [{when: "gpu_utilization > 95 for 30s", severity: warn}]
evaluation:
  suites: [{name: math, target: "my.suites:math", settings: {count: 100}}]
  every: {epochs: 1, steps: 500, seconds: 600}
  adaptive: true
  budget: 0.15
derived:
  - {name: mfu, mfu: {flops_per_token: 42 GFLOP, peak_flops: 989 TFLOPS, devices: 8}}
  - {name: smooth, ema: loss, half_life: 50 steps}
aggregates: [{target: trimmed_mean, metrics: [latency], settings: {part: 0.2}}]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings file of the developer's in reach."""
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


def of(tmp_path: Path, text: str, **env: str) -> Settings:
    return load(written(tmp_path, text), env)


def test_the_file_that_users_know_is_accepted_as_it_stands_and_does_what_it_says() -> None:
    settings = load(KNOWN, {})
    assert settings.sdk.enabled
    assert settings.sdk.collect_us == 100_000
    assert settings.sdk.system == ("cpu", "memory", "gpu")
    assert settings.metrics == (
        "throughput",
        "latency",
        "accuracy",
        "gradient_update_time",
        "data_loading_time",
    )
    assert settings.storage.retention_us == 7 * 86_400_000_000
    assert settings.pipeline.rules == [
        Rule(name="gpu_utilization > 95%", metric="gpu_utilization", op=">", bound=95.0),
        Rule(name="latency > 500ms", metric="latency", op=">", bound=0.5),
    ]
    assert settings.notes == ()


def test_both_forms_in_one_file_merge(tmp_path: Path) -> None:
    settings = of(tmp_path, KNOWN.read_text() + MORE)
    assert settings.storage.root == "./elsewhere"
    assert settings.storage.retention_us == 7 * 86_400_000_000
    assert [rule.name for rule in settings.pipeline.rules] == [
        "gpu_utilization > 95%",
        "latency > 500ms",
        "gpu_utilization > 95 for 30s",
    ]
    assert settings.pipeline.rules[-1].for_us == 30_000_000
    assert settings.pipeline.windows == [
        WindowSpec(axis="time", size=10_000_000, every=1_000_000),
        WindowSpec(axis="step", size=50, every=1),
    ]
    assert settings.pipeline.suites == [
        SuiteRef(name="math", target="my.suites:math", settings={"count": 100})
    ]
    assert settings.pipeline.triggers == Triggers(epochs=1.0, steps=500, every_us=600_000_000)


def test_what_is_not_in_effect_yet_is_said_and_not_silently_ignored(tmp_path: Path) -> None:
    notes = of(tmp_path, MORE).notes
    assert [note.split(" ")[0] for note in notes] == ["evaluation.adaptive", "evaluation.budget"]
    assert all("not in effect yet" in note for note in notes)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(None, {})
    assert settings == Settings(streams=settings.streams)
    assert settings.pipeline == PipelineConfig()
    assert settings.source == ""


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "monitoring:\n", "storage:\n"])
def test_an_empty_file_is_the_defaults(tmp_path: Path, text: str) -> None:
    settings = of(tmp_path, text)
    assert msgspec.structs.replace(settings, source="") == load(None, {})


def test_the_file_is_found_by_name_in_the_environment_or_where_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "driftline.yaml").write_text("kafka: {prefix: here.}")
    other = tmp_path / "other.yaml"
    other.write_text("kafka: {prefix: there.}")
    assert load(None, {}).kafka.prefix == "here."
    assert load(None, {"DRIFTLINE_CONFIG": str(other)}).kafka.prefix == "there."
    assert load(tmp_path / "driftline.yaml", {"DRIFTLINE_CONFIG": str(other)}).kafka.prefix == "here."


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("DRIFTLINE_BOOTSTRAP", "k1:9092,k2:9092", "kafka.bootstrap", "k1:9092,k2:9092"),
        ("DRIFTLINE_KAFKA__BOOTSTRAP", "k1:9092", "kafka.bootstrap", "k1:9092"),
        ("DRIFTLINE_PREFIX", "p.", "kafka.prefix", "p."),
        ("DRIFTLINE_ROOT", "/data", "storage.root", "/data"),
        ("DRIFTLINE_EVALUATION__EVERY__STEPS", "500", "pipeline.triggers.steps", 500),
        ("DRIFTLINE_EVALUATION__EVERY__SECONDS", "2.5", "pipeline.triggers.every_us", 2_500_000),
        ("DRIFTLINE_EVALUATION__EVERY__SECONDS", "10m", "pipeline.triggers.every_us", 600_000_000),
        ("DRIFTLINE_EVALUATION__EVERY", "{epochs: 2}", "pipeline.triggers.epochs", 2.0),
        ("DRIFTLINE_ENABLED", "false", "sdk.enabled", False),
        ("DRIFTLINE_MONITORING__ENABLED", "no", "sdk.enabled", False),
        ("DRIFTLINE_MONITORING__COLLECTION_FREQUENCY", "2s", "sdk.collect_us", 2_000_000),
        ("DRIFTLINE_METRICS__SYSTEM", "[cpu]", "sdk.system", ("cpu",)),
        ("DRIFTLINE_STORAGE__RETENTION", "null", "storage.retention_us", None),
        (
            "DRIFTLINE_WINDOWS",
            "[{axis: step, size: 4, every: 2}]",
            "pipeline.windows",
            [WindowSpec(axis="step", size=4, every=2)],
        ),
        ("DRIFTLINE_KAFKA__SASL_USERNAME", "12345", "kafka.sasl_username", "12345"),
        ("DRIFTLINE_SDK__BUFFER", "8MiB", "sdk.buffer_bytes", 1 << 23),
        ("DRIFTLINE_EVALUATOR__THREADS", "2", "evaluator.threads", 2),
    ],
)
def test_every_key_is_an_environment_variable_that_wins_over_the_file(
    tmp_path: Path, name: str, value: str, path: str, expected: Any
) -> None:
    text = "{kafka: {bootstrap: 'f:1', prefix: f., sasl_username: f}, storage: {root: f, retention: 1d}, "
    text += "evaluation: {every: {steps: 3}, suites: [a:b]}}"
    found: Any = of(tmp_path, text, **{name: value})
    for step in path.split("."):
        found = getattr(found, step)
    assert found == expected


def test_an_environment_block_is_added_to_by_a_deeper_variable(tmp_path: Path) -> None:
    env = {"DRIFTLINE_EVALUATION__EVERY": "{epochs: 2}", "DRIFTLINE_EVALUATION__EVERY__STEPS": "7"}
    assert of(tmp_path, "", **env).pipeline.triggers == Triggers(epochs=2.0, steps=7)


def test_variables_of_the_sdk_the_command_line_and_the_tests_are_no_keys(tmp_path: Path) -> None:
    env = {
        "DRIFTLINE_RUN_ID": "abc",
        "DRIFTLINE_TEST_BOOTSTRAP": "x",
        "DRIFTLINE_REALDATA": "/d",
        "DRIFTLINE_LOG": "debug",
        "DRIFTLINE_REQUIRE_KAFKA": "1",
        "PATH": "/bin",
    }
    assert load(None, env) == load(None, {})


def test_faust_works_beside_the_tables_unless_told_otherwise(tmp_path: Path) -> None:
    assert of(tmp_path, "storage: {root: /data/x}").streams.state_dir == "/data/x/.streams"
    assert of(tmp_path, "{storage: {root: /data/x}, streams: {state_dir: /s}}").streams.state_dir == "/s"


def test_the_allowed_lateness_grows_with_the_flush_interval(tmp_path: Path) -> None:
    assert of(tmp_path, "").pipeline.allowed_lateness_us == 2_000_000
    assert of(tmp_path, "sdk: {flush: 5s}").pipeline.allowed_lateness_us == 10_000_000
    assert of(tmp_path, "streams: {allowed_lateness: 1m}").pipeline.allowed_lateness_us == 60_000_000


def test_metrics_may_be_a_map_and_lists_of_one_name_join(tmp_path: Path) -> None:
    assert of(tmp_path, "metrics: {system: [], custom: [a]}").sdk.system == ()
    text = "metrics: [{custom: [a, b]}, {application: [c]}, {custom: [b, d]}, {system: [gpu, gpu]}]"
    settings = of(tmp_path, text)
    assert settings.metrics == ("c", "a", "b", "d")
    assert settings.sdk.system == ("gpu",)


def test_a_detector_is_changed_removed_or_added_by_name(tmp_path: Path) -> None:
    text = """
    detectors:
      - {kind: slow_rank, params: {ratio: 2}}
      - {kind: loss_divergence, enabled: false}
      - {kind: loss_spike, name: reward-spike, metrics: [reward], severity: info}
    """
    specs = {spec.name: spec for spec in of(tmp_path, text).pipeline.detectors}
    assert list(specs) == ["non-finite", "loss-spike", "slow-rank", "silent-rank", "reward-spike"]
    assert specs["slow-rank"].params == {"ratio": 2.0}
    assert specs["slow-rank"].severity == "error"
    assert specs["reward-spike"].metrics == ["reward"]
    assert specs["reward-spike"].severity == "info"
    assert specs["loss-spike"] == next(spec for spec in DEFAULT_DETECTORS if spec.name == "loss-spike")


def test_a_window_may_be_the_whole_run_so_far(tmp_path: Path) -> None:
    text = "windows: [{axis: step, size: run, every: 100}, {axis: time, size: run, every: 10m}]"
    specs = of(tmp_path, text).pipeline.windows
    assert specs == [WindowSpec("step", 0, 100), WindowSpec("time", 0, 600_000_000)]


def test_derived_metrics_are_read_in_their_order_under_their_long_names(tmp_path: Path) -> None:
    text = """
    derived:
      - {name: tps, rate: tokens, over: 2}
      - {name: mfu, mfu: {flops_per_token: 42 GFLOP, peak_flops: 989 TFLOPS}}
      - {name: lpt, ratio: [loss_sum, tokens], times: 1e-3}
      - {name: smooth, ema: lpt, half_life: 30s}
      - {name: smoother, ema: smooth, half_life: 5m}
      - {name: steps, ema: train_loss, half_life: 50 steps}
      - {name: apart, spread: step_time}
    """
    rate, mfu, ratio, first, second, steps, spread = of(tmp_path, text).pipeline.derived
    assert (rate.name, rate.kind, rate.of, rate.over) == ("tokens_per_second", "rate", "tokens", 2.0)
    assert (mfu.kind, mfu.of, mfu.times, mfu.over, mfu.devices) == ("rate", "tokens", 42e9, 989e12, None)
    assert (ratio.of, ratio.per, ratio.times) == ("loss_sum", "tokens", 1e-3)
    assert (first.of, first.half_life_us, second.half_life_us) == ("lpt", 30_000_000, 300_000_000)
    assert (steps.of, steps.half_life_steps) == ("loss", 50)
    assert (spread.kind, spread.of) == ("spread", "step_time")


def test_an_aggregate_is_named_by_its_class_unless_it_has_a_name(tmp_path: Path) -> None:
    text = """
    aggregates:
      - {target: geometric_mean, metrics: [tps, latency]}
      - {name: middle, target: "my.package:Middle", metrics: [loss], version: "2", settings: {part: 0.2}}
    streams: {weighted_quantiles: {loss: [0.9, 0.5]}}
    """
    pipeline = of(tmp_path, text).pipeline
    first, second = pipeline.aggregates
    assert (first.name, first.metrics) == ("geometric_mean", ["tokens_per_second", "latency"])
    assert (second.name, second.target, second.version) == ("middle", "my.package:Middle", "2")
    assert second.settings == {"part": 0.2}
    assert pipeline.weighted_quantiles == {"loss": [0.5, 0.9]}


def test_a_suite_may_be_its_target_alone(tmp_path: Path) -> None:
    suites = of(tmp_path, "evaluation: {suites: ['pkg.mod:attr', installed-one]}").pipeline.suites
    assert [(s.name, s.target) for s in suites] == [
        ("attr", "pkg.mod:attr"),
        ("installed-one", "installed-one"),
    ]


def test_a_frequency_without_a_suite_is_noted(tmp_path: Path) -> None:
    assert "no effect without evaluation.suites" in of(tmp_path, "evaluation: {every: {steps: 5}}").notes[0]


def test_the_password_comes_from_the_environment_or_a_file_and_is_never_shown(tmp_path: Path) -> None:
    text = "kafka: {security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_username: u}"
    settings = of(tmp_path, text, DRIFTLINE_KAFKA__SASL_PASSWORD="00123")
    assert settings.kafka.sasl_password == "00123"
    assert "00123" not in repr(settings)
    assert "00123" not in in_effect(written(tmp_path, text), {"DRIFTLINE_KAFKA__SASL_PASSWORD": "00123"})
    secret = tmp_path / "secret"
    secret.write_text("hidden\n")
    assert of(tmp_path, text[:-1] + f", sasl_password_file: {secret}}}").kafka.sasl_password == "hidden"


@pytest.mark.parametrize(
    "text",
    [
        "",
        KNOWN.read_text() + MORE,
        "{storage: {retention: 90m}, sdk: {buffer: 3000000}}",
        "windows: [{axis: step, size: run, every: 9}]",
    ],
)
def test_the_settings_in_effect_are_a_file_that_gives_the_same_settings(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    before = load(path, {})
    again = tmp_path / "again.yaml"
    again.write_text(in_effect(path, {}))
    same = {"source": "", "notes": ()}
    assert msgspec.structs.replace(load(again, {}), **same) == msgspec.structs.replace(before, **same)
