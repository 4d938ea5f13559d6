"""Another configuration over the same log: what it gains, loses and moves, and how much of it is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from driftline import config, events
from driftline.cli.app import app
from driftline.errors import SettingsError
from driftline.replay import episodes, labels
from driftline.replay.backtest import backtest
from driftline.replay.episodes import Episode
from driftline.storage.recorded.source import TableLog

SECOND = 1_000_000


def alert(rule: str = "r", step: int | None = 10, at: int = 100, **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "alert": f"{rule}-{step}",
        "run": "a",
        "attempt": 0,
        "rule": rule,
        "detector": "threshold",
        "severity": "warn",
        "metric": "loss",
        "rank": None,
        "opened_us": at * SECOND,
        "step": step,
        "last_step": step,
        "resolved_us": at * SECOND + SECOND,
        "explanation": "",
        "offset": at,
    }
    return Episode(**(fields | changes))


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ([alert()], [alert()], (1, 0, 0, 0)),
        ([alert()], [], (0, 0, 0, 1)),
        ([], [alert()], (0, 0, 1, 0)),
        ([alert()], [alert(step=14, at=104)], (0, 1, 0, 0)),
        ([alert()], [alert(step=400, at=900)], (0, 0, 1, 1)),
        ([alert()], [alert(severity="page")], (0, 1, 0, 0)),
        ([alert()], [alert(rank=3)], (0, 0, 1, 1)),
        ([alert()], [alert(run="b")], (0, 0, 1, 1)),
        ([alert(resolved_us=900 * SECOND)], [alert(step=400, at=800)], (0, 1, 0, 0)),
        ([alert("loss > 3")], [alert("loss > 4", step=12, at=101)], (0, 1, 0, 0)),
        ([alert("x", detector="loss_spike")], [alert("y")], (0, 0, 1, 1)),
        ([alert(), alert(step=30, at=120)], [alert(step=29, at=119)], (0, 1, 0, 1)),
    ],
)
def test_alerts_are_the_same_moved_gained_or_lost(
    before: list[Episode], after: list[Episode], wanted: tuple[int, ...]
) -> None:
    found = episodes.compare(before, after)
    assert (found.same, len(found.moved), len(found.gained), len(found.lost)) == wanted


def test_a_moved_alert_says_by_how_much() -> None:
    (moved,) = episodes.compare([alert()], [alert(step=14, at=103)]).moved
    assert (moved.steps, moved.seconds, moved.severity) == (4, 3.0, False)


def test_precision_recall_and_lead_time_rest_on_the_labels() -> None:
    found = [
        alert(step=12, at=102),
        alert(step=13, at=103, rank=1),
        alert(step=500, at=900),
        alert("q", step=200),
    ]
    incidents = labels.read("run,from_step,to_step,metric\na,10,40,loss\na,300,310,loss\nb,1,2,\n", "l.csv")
    one, other, both = labels.score(found, incidents, ["r", "q"])
    assert (one.alerts, one.right, one.incidents, one.found) == (3, 2, 3, 1)
    assert (one.precision, one.recall) == (2 / 3, 1 / 3)
    assert (one.lead_steps, one.delay_steps, one.lead_seconds) == (28.0, 2.0, None)
    assert (other.precision, other.recall) == (0.0, 0.0)
    assert (both.alerts, both.right, both.found) == (4, 2, 1)


def test_lead_counts_from_where_an_alert_was_opened_not_from_where_it_began() -> None:
    """A rule "for 10 steps" that begins at step 100 is known at step 109."""
    known = episodes.Episodes()
    for state, last in (("open", 109), ("resolved", 130)):
        event = events.Alert(
            id="u/0/1/0",
            alert="x",
            run="a",
            attempt=0,
            rule="r",
            detector="threshold",
            severity="warn",
            time_us=9,
            opened_us=5,
            explanation="",
            state=state,
            step=100,
            last_step=last,
        )  # type: ignore[arg-type]
        known.add(event, 7)
    judged_by = labels.Labels([labels.Incident("a", 98, 120)], frozenset("a"))
    (score, _) = labels.score(known.list(), judged_by, ["r"])
    assert (score.lead_steps, score.delay_steps) == (11, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repair", "--what-if", "end"], "--what-if"),
        (["--repair", "--to", "2026-01-01"], "--to"),
        (["--what-if", "end", "--from", "5"], "--from"),
        (["--to-prefix", "r.", "--dry-run"], "--dry-run"),
        (["--dry-run"], "--repair"),
        (["--outputs"], "--to-prefix"),
        (["--repair", "--bootstrap", "x:1"], "--bootstrap"),
        (["--speed", "10x"], "--speed belongs to --to-prefix"),
        (["--csv"], "--csv belongs to --config"),
        (["--csv", "--json", "--config", "FILE"], "without --json"),
        (["--from", "5", "--to", "5"], "--to"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], "--to"),
        (["--from", "²"], "give an offset"),
    ],
)
def test_options_that_would_be_passed_over_or_leave_nothing_are_refused(
    whole: tuple[Any, Path], tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "other.yaml").write_text("")
    given = [str(tmp_path / "other.yaml") if word == "FILE" else word for word in arguments]
    answer = CliRunner().invoke(app, ["replay", "--root", str(whole[1]), *given])
    assert answer.exit_code == 2
    assert words in answer.stderr


def test_labels_by_time_and_by_rank_and_rule() -> None:
    text = json.dumps([{"run": "a", "from": 90, "to": 130, "rank": 2, "rule": "r"}])
    read = labels.read(text, "l.json")
    (incident,) = read.incidents
    assert labels.fits(alert(rank=2), incident)
    assert not labels.fits(alert(rank=1), incident)
    assert not labels.fits(alert("q", rank=2), incident)
    assert not labels.fits(alert(rank=2, at=191), incident)
    assert labels.fits(alert(rank=2, at=189), incident), "within a minute after its end"
    (score, _) = labels.score([alert(rank=2)], read, ["r"])
    assert (score.lead_seconds, score.delay_seconds) == (30.0, 10.0)


@pytest.mark.parametrize(
    "text",
    [
        "run,when\na,3\n",
        "run,metric\na,loss\n",
        "run,from_step\na,3,4\n",
        "run,to_step\na,3\n",
        "run,from_step,to_step\na,30,4\n",
        "[1]",
        '{"run": "a", "from": "soon"}',
        '{"run": "a", "from": 1e400}',
        '{"run": "a", "from_step": 1.5}',
        '{"run": "a", "from_step": true}',
    ],
)
def test_labels_that_cannot_be_read_are_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="--labels"):
        labels.read(text, "labels.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run,from_step\na,3\na,1e3\n", "label 2: from_step '1e3' is no whole number"),
        ("run,from\na,1700000000\n", "label 1: from '1700000000' is no time: write it like"),
        ('[{"run": "a", "from": 1, "to": 1e400}]', "label 1: to inf is no time"),
    ],
)
def test_a_number_or_time_that_cannot_be_read_is_named_with_its_label(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        labels.read(text, "labels.csv")


@pytest.mark.parametrize("text", ["", " \n", "run,from_step\n", "[]"])
def test_a_file_without_labels_is_refused_instead_of_judging_nothing(text: str) -> None:
    with pytest.raises(SettingsError, match="no labels"):
        labels.read(text, "labels.csv")


def test_alerts_of_runs_that_no_label_names_are_counted_apart_and_a_run_may_be_named_as_clean() -> None:
    found = [alert(), alert(run="b"), alert(run="c")]
    (score, _) = labels.score(found, labels.read("run,from_step\na,10\nb,\n", "l"), ["r"])
    assert (score.alerts, score.right, score.unjudged, score.precision) == (2, 1, 1, 0.5)
    assert (score.incidents, score.recall) == (1, 1.0)


@pytest.mark.parametrize(
    ("label", "changes", "right"),
    [
        ("a,900,,,,", {"resolved_us": None}, True),  # still open there
        ("a,900,,,,", {}, False),
        ("a,1,,,,", {"step": 100, "resolved_us": None}, False),  # over before
        ("a,10,,lo*,,", {}, True),
        ("a,10,,lo*,,", {"metric": None}, False),
        ("a,10,,l[o]ss,,", {}, False),
        ("a,10,,l[o]*,,", {"metric": "l[o]ss"}, True),
        ("a,10,,,3,", {"rank": None}, False),
        ("a,10,,,3,", {"rank": 3}, True),
        ("a,10,,,,1", {}, False),
        ("a,10,,,,0", {}, True),
        ("a,10,,,,", {"step": None}, False),
    ],
)
def test_an_alert_is_right_if_it_fits_the_label_and_touches_it_while_it_lasts(
    label: str, changes: dict[str, Any], right: bool
) -> None:
    (incident,) = labels.read(f"run,from_step,to_step,metric,rank,attempt\n{label}\n", "l").incidents
    assert labels.fits(alert(**changes), incident) is right


def test_an_open_alert_lasts_by_the_clock_too_and_meets_a_later_one_of_the_other_side() -> None:
    (incident,) = labels.read('{"run": "a", "from": 5000, "to": 5001}', "l").incidents
    assert labels.fits(alert(resolved_us=None), incident)
    assert not labels.fits(alert(), incident)
    found = episodes.compare([alert(resolved_us=None)], [alert(step=900, at=5000)])
    assert (len(found.moved), found.gained, found.lost) == (1, [], [])


def test_one_alert_may_find_two_labels_and_lead_and_delay_may_be_negative() -> None:
    """The second was announced before it began; an alert after the end has a negative lead."""
    text = "run,from_step,to_step\na,10,20\na,15,30\na,10,20\n"
    (score, _) = labels.score([alert(step=12, last_step=16)], labels.read(text, "l"), ["r"])
    assert (score.alerts, score.right, score.incidents, score.found) == (1, 1, 2, 2)
    assert (score.lead_steps, score.delay_steps) == ((8 + 18) / 2, (2 - 3) / 2)
    (late, _) = labels.score([alert(step=40)], labels.read("run,from_step\na,10\n", "l"), ["r"])
    assert (late.right, late.lead_steps, late.delay_steps) == (1, -30.0, 30.0)


def test_labels_of_what_was_not_replayed_are_neither_found_nor_missed(whole: tuple[Any, Path]) -> None:
    text = "run,from_step\na,60\na,5000\nb,7\n"
    other = config.PipelineConfig()
    some = backtest(TableLog(whole[1], ["a"]), other, runs=["a"], judged_by=labels.read(text, "l"))
    assert [(one.run, one.from_step) for one in some.outside] == [("a", 5000), ("b", 7)]
    assert some.scores_after[-1].incidents == 1
    none = backtest(TableLog(whole[1], ["a"]), other, runs=["a"], judged_by=labels.read("run\nx\n", "l"))
    assert none.scores_after[-1].alerts == 0
    assert none.scores_after[-1].unjudged > 0
    assert "nothing is judged" in " ".join(none.notes)


def test_another_configuration_is_played_beside_the_logs_own(whole: tuple[Any, Path]) -> None:
    """A further rule, other windows, rarer evaluations: what comes, what goes, what stays."""
    root = whole[1]
    suite = events.SuiteRef(name="sums", target="m:a")
    rule = config.Rule(name="high", metric="loss", op=">", bound=5.0, for_steps=1)
    other = config.PipelineConfig(
        windows=[config.WindowSpec("step", 20, 5)],
        rules=[rule],
        detectors=[],
        suites=[suite],
        triggers=config.Triggers(steps=150, at_end=False),
    )
    judged_by = labels.read("run,from_step,metric\na,60,loss\na,157,loss\nb,7,norm\n", "l")
    found = backtest(TableLog(root), other, judged_by=judged_by)
    assert {one.rule for one in found.alerts.gained} == {"high"}
    assert {one.detector for one in found.alerts.lost} >= {"loss_spike", "non_finite"}
    assert found.triggers_lost
    assert not {one.key for one in found.triggers_gained} & {one.key for one in found.triggers_lost}
    by_axis = {one.axis: one for one in found.windows if one.size not in (50, 10 * SECOND)}
    assert by_axis["step"].gained > 0
    high = next(one for one in found.scores_after if one.rule == "high")
    assert (high.precision, high.recall) == (1.0, 2 / 3)
    assert [one.metric for one in found.missed] == ["norm"]


def test_the_same_configuration_makes_no_difference(whole: tuple[Any, Path]) -> None:
    """Of a log with one configuration: with two, the exchanged one holds from the beginning."""
    from driftline.config import PipelineConfig

    settings = PipelineConfig(windows=[config.WindowSpec("step", 20, 5)])
    log = TableLog(whole[1])
    first = backtest(log, settings)
    again = backtest(TableLog(whole[1]), settings)
    assert first == again


def test_the_command_shows_difference_and_labels(whole: tuple[Any, Path], tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(
        'alerting:\n  rules: [{when: "loss > 20 for 1 steps"}]\n', encoding="utf-8"
    )
    (tmp_path / "labels.csv").write_text("run,from_step\nthe a,60\n", encoding="utf-8-sig")
    arguments = ["replay", "a", "--root", str(whole[1]), "--config", str(tmp_path / "other.yaml")]
    arguments += ["--labels", str(tmp_path / "labels.csv")]
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["alerts"]["gained"] == len(
        [c for c in found["changes"] if c["what"] == "alert" and c["change"] == "gained"]
    )
    assert found["scores"]["other"][-1]["recall"] == 1.0
    plain = CliRunner().invoke(app, arguments).output
    assert "alert gained: loss > 20 for 1 steps of a" in plain
    table = CliRunner().invoke(app, [*arguments, "--csv"]).output.splitlines()
    assert table[0].startswith("what,change,run")
    assert len(table) == len(found["changes"]) + 1


def test_labels_that_judge_nothing_are_said_with_an_exit_code_of_their_own(
    whole: tuple[Any, Path], tmp_path: Path
) -> None:
    (tmp_path / "other.yaml").write_text("{}", encoding="utf-8")
    (tmp_path / "labels.csv").write_text("run,from_step\n", encoding="utf-8")
    arguments = ["replay", "b", "--root", str(whole[1]), "--config", str(tmp_path / "other.yaml")]
    arguments += ["--labels", str(tmp_path / "labels.csv")]
    empty = CliRunner().invoke(app, arguments)
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "has no labels" in empty.stderr
    (tmp_path / "labels.csv").write_text("run,from_step\na,60\n", encoding="utf-8")
    elsewhere = CliRunner().invoke(app, arguments)
    assert elsewhere.exit_code == 1
    assert "nothing is judged" in elsewhere.output
    assert "outside of what was replayed: run a, from_step 60" in elsewhere.output


def test_equal_configurations_make_no_difference_and_one_without_suites_says_what_it_would_not_do(
    log: Any, store: Any, tmp_path: Path
) -> None:
    one = log()
    one.train("a", range(60))
    one.end("a")
    root = store(tmp_path / "one", one)
    same = backtest(TableLog(root), config.PipelineConfig())
    assert same.no_difference
    suite = config.PipelineConfig(suites=[events.SuiteRef(name="sums", target="m:a")])
    other = log("2" * 36, settings=suite)
    other.train("b", range(60))
    other.end("b")
    (tmp_path / "other.yaml").write_text("")
    arguments = ["replay", "--config", str(tmp_path / "other.yaml"), "--root"]
    answer = CliRunner().invoke(app, [*arguments, str(root)])
    assert (answer.exit_code, "No difference" in answer.output) == (0, True), answer.output
    answer = CliRunner().invoke(app, [*arguments, str(store(tmp_path / "two", other))])
    assert "names no suite" in answer.output
    assert "No difference" not in answer.output
