"""One page of a run, or of several compared, that one would send to a colleague.

``gathered`` asks the tables (every question that there is of a run); ``written`` makes HTML of what came, and
is pure. The page is bounded: curves are thinned by the tables' macro, lists are cut, and each says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.ask import answer, known_metric, named_runs, rows_of, without_times
from driftline.analysis.page import body_of, charts_of, document, escape, table_of, tiles
from driftline.analysis.question import Asked, Query, Run
from driftline.analysis.questions import QUESTIONS
from driftline.analysis.report_words import Told, difference, flat, headline, numbers, verdict
from driftline.analysis.words import ALERTS
from driftline.errors import BadData
from driftline.metric_names import SHOWN_FIRST
from driftline.storage.open import Catalog

RUNS_MAX = 8
SUCCESS = (
    ("accuracy", "acc", "score", "reward", "return"),
    ("loss", "perplexity", "ppl", "nll"),
    ("kl", "entropy", "norm"),
)
"""Words in names of metrics that speak of how a training goes."""
CURVES_MAX = 6
"""Metrics of a run whose curves are shown, if nobody names them."""
FACTS_MAX = 40
COMPARED_MAX = 3
POINTS = 400
"""Points of a curve on the page."""
OF_A_RUN = ("evals", "goodput", "steps", "ranks", "utilisation")
"""Questions that have a section of their own."""
SHARED = ("lead_steps", "step_parts", "step_times", "run_stretches")
"""Macros that several of these rest on: computed for each, they took half of a report's queries."""
OF_TIME = ("goodput", "steps", "utilisation")
"""Of which nothing is said where an import had to make up times."""
HEADS = {
    "evals": "Evaluations",
    "goodput": "Where the time went",
    "steps": "What a step is made of",
    "ranks": "Ranks",
    "utilisation": "Utilisation",
}
_SUMMARY = """SELECT s.*, r.config, r.world_size,
    (epoch_us(coalesce(r.ended, r.last_heard)) - epoch_us(r.started)) / 1e6 AS seconds
FROM run_summary AS s JOIN runs AS r USING (run) WHERE s.run = $run"""
_METRICS = """SELECT s.metric, d.goal, s.steps, s.constant FROM (
    SELECT metric, count(DISTINCT step) AS steps, coalesce(min(value) = max(value), false) AS constant
    FROM samples WHERE run = $run AND step IS NOT NULL GROUP BY metric) AS s
LEFT JOIN (SELECT metric, max_by(goal, "offset") AS goal FROM metric_definitions
    WHERE run = $run AND goal IS NOT NULL GROUP BY metric) AS d USING (metric)
WHERE s.steps > 1 AND NOT starts_with(s.metric, 'span/') AND NOT starts_with(s.metric, 'checkpoint_')
ORDER BY s.metric"""
_FACTS = """SELECT time, what, text FROM facts WHERE run = $run
    AND what NOT IN ('process_joined', 'process_left', 'run_started', 'run_ended')
ORDER BY time, "offset", ordinal"""
_SOURCE = """SELECT topic_uuid, "partition", count(*) AS records, max("offset") AS last_offset,
    max(received) AS received FROM log WHERE run = $run GROUP BY ALL ORDER BY ALL"""


@dataclass(frozen=True)
class Gathered:
    """All that a page says of one run."""

    run: Run
    summary: Row
    curves: tuple[Answer, ...]
    answers: Mapping[str, Answer]
    alerts: tuple[Row, ...]
    facts: tuple[Row, ...]
    source: tuple[Row, ...]
    metrics_left: int = 0
    timeless: bool = False


def gathered(catalog: Catalog, run: Run, metrics: Sequence[str] = ()) -> Gathered:
    """Asks the tables."""
    given = {"run": run.run}

    def ask(sql: str) -> tuple[Row, ...]:
        return tuple(rows_of(catalog, Query(sql, given)))

    logged = ask(_METRICS)
    known = [row["metric"] for row in logged]
    chosen = list(metrics) or _chosen(logged)
    asked = Asked((run,), options={"points": POINTS})
    timeless = without_times(catalog, [run])
    curve = QUESTIONS["curve"]
    with catalog.keeping(SHARED, run.run):
        answers = {
            name: Answer(name, HEADS[name], empty=timeless[0])
            if timeless and name in OF_TIME
            else answer(catalog, QUESTIONS[name], asked, timeless=timeless)
            for name in OF_A_RUN
        }
    return Gathered(
        run=run,
        summary=ask(_SUMMARY)[0],
        curves=tuple(
            answer(catalog, curve, replace(asked, metrics=(name,)), timeless=timeless)
            for name in chosen
            if name in known
        ),
        answers=answers,
        alerts=ask(ALERTS),
        facts=ask(_FACTS),
        source=ask(_SOURCE),
        metrics_left=0 if metrics else max(0, len(known) - len(chosen)),
        timeless=bool(timeless),
    )


def page(
    catalog: Catalog, words: Sequence[str], metrics: Sequence[str], *, command: str, when: str, version: str
) -> str:
    """The report of the runs that ``words`` name.

    Raises:
        BadData: no such run or metric, or more runs than a page holds.
    """
    runs, notes = named_runs(catalog, words)
    if len(runs) > RUNS_MAX:
        raise BadData(f"a report compares at most {RUNS_MAX} runs, these are {len(runs)}")
    chosen = [known_metric(catalog, runs[0], name) for name in metrics]
    notes = [*notes, *without_times(catalog, runs)]
    each = [gathered(catalog, run, chosen) for run in runs]
    shared = (chosen or _goals(catalog, runs[0]))[:COMPARED_MAX]
    compared = {
        name: [answer(catalog, QUESTIONS["compare"], Asked((runs[0], other), (name,))) for other in runs[1:]]
        for name in (shared if len(runs) > 1 else ())
    }
    return written(each, compared, notes=notes, command=command, when=when, version=version)


def _goals(catalog: Catalog, run: Run) -> list[str]:
    """Metrics of the run to compare others by: those with a goal, else the one shown first."""
    logged = rows_of(catalog, Query(_METRICS, {"run": run.run}))
    with_goal = {row["metric"] for row in logged if row["goal"]}
    return [name for name in _chosen(logged) if name in with_goal] or _chosen(logged)[:1]


def _chosen(logged: Sequence[Row]) -> list[str]:
    """Metrics with a goal, then the usual ones, those that speak of success, those logged most often."""
    ranked = sorted(
        logged,
        key=lambda row: (
            row["goal"] is None,
            SHOWN_FIRST.index(row["metric"]) if row["metric"] in SHOWN_FIRST else len(SHOWN_FIRST),
            row["constant"],
            _interest(row["metric"]),
            -row["steps"],
            row["metric"],
        ),
    )
    return [row["metric"] for row in ranked[:CURVES_MAX]]


def _interest(metric: str) -> int:
    """Which curves one wants to see first, where nobody declared a goal: least first. Order only."""
    words = re.split(r"[^a-z]+", metric.lower())
    tested = any(word in ("val", "valid", "validation", "eval", "test") for word in words)
    told = next((at for at, some in enumerate(SUCCESS) if any(word in some for word in words)), len(SUCCESS))
    edge = any(word in ("min", "max", "std") for word in words)
    return 2 * told + edge - (2 * len(SUCCESS) if tested and told < len(SUCCESS) else 0)


def written(
    runs: Sequence[Gathered],
    compared: Mapping[str, Sequence[Answer]],
    *,
    notes: Sequence[str] = (),
    command: str,
    when: str,
    version: str,
) -> str:
    """The page of one run, or of several with what was compared of them.

    ``compared``: by metric, the comparisons of the others with the first run.
    """
    if not runs:
        raise BadData("a report needs a run")
    told = [_told(each) for each in runs]
    first = runs[0]
    title = headline([each.run for each in runs])
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(told[0].subtitle if len(runs) == 1 else "")}</p>',
    ]
    parts += [f'<p class="note">{escape(note)}</p>' for note in notes]
    parts.append(_verdict(told, [each.says[0] for of in compared.values() for each in of if each.says]))
    parts.append(tiles(numbers(told[0])) if len(runs) == 1 else _side_by_side(told))
    if len(runs) > 1:
        parts += [_differences(runs), _compared(compared)]
    for at, each in enumerate(runs):
        prefix = f"r{at}"
        if len(runs) > 1:
            parts.append(f'<h2 class="run">{escape(each.run.spoken)}</h2>')
        parts.append(_sections(each, prefix, level=2 if len(runs) == 1 else 3))
    if len(runs) == 1:
        parts.append(_config(first))
    parts.append(_lineage(runs, command=command, when=when, version=version))
    return document(f"{title} - driftline", parts)


def _told(each: Gathered) -> Told:
    return Told(each.run, each.summary, each.curves, each.answers, each.alerts, each.timeless)


def _verdict(told: Sequence[Told], compared: Sequence[str]) -> str:
    said: list[tuple[str, bool]] = []
    for one in told:
        prefix = f"{one.run.short}: " if len(told) > 1 else ""
        said += [(prefix + sentence, bad) for sentence, bad in verdict(one, short=len(told) > 1)]
    said = [(sentence, False) for sentence in compared] + said
    bad = any(is_bad for _, is_bad in said)
    lines = "".join(f"<li{' class=warn' if is_bad else ''}>{escape(text)}</li>" for text, is_bad in said)
    return f'<div class="verdict{" troubled" if bad else ""}"><ul>{lines}</ul></div>'


def _side_by_side(told: Sequence[Told]) -> str:
    rows = []
    for one in told:
        row: dict[str, Any] = dict(one.summary)
        row |= {"seconds": None, "started": None} if one.timeless else {}
        row |= {name: text for text, name in numbers(one)}
        rows.append(row)
    return table_of(
        table(
            "runs",
            "The runs",
            rows,
            Column("name"),
            Column("run", "id"),
            Column("started", "started, UTC"),
            Column("seconds", "took", "seconds"),
            Column("outcome"),
            Column("ranks"),
            Column("last_step", "last step", "count"),
            Column("samples", form="count"),
            Column("evaluations"),
            Column("alerts"),
            Column("alerts_open", "open"),
        )
    )


def _differences(runs: Sequence[Gathered]) -> str:
    found = [flat(each.summary["config"]) for each in runs]
    settings = [{k: v for k, v in one.items() if not k.startswith("import.")} for one in found]
    rows = difference(settings)
    if not rows:
        unknown = any(found) and not any(settings)
        words = (
            "Their settings are not known: imported." if unknown else "The runs have the same configuration."
        )
        return f"<h2>Configuration</h2><p>{words}</p>"
    columns = [Column(f"run{at}", each.run.short) for at, each in enumerate(runs)]
    shown = [{"key": key, **{f"run{at}": value for at, value in enumerate(values)}} for key, *values in rows]
    return "<h2>Configuration: what differs</h2>" + table_of(
        table("config", "", shown, Column("key"), *columns)
    )


def _compared(compared: Mapping[str, Sequence[Answer]]) -> str:
    parts = ["<h2>Compared</h2>"] if compared else []
    for at, (metric, answers) in enumerate(compared.items()):
        parts.append(f"<h3>{escape(metric)}</h3>")
        parts += [
            body_of(replace(each, notes=each.notes[-2:-1]), prefix=f"c{at}-{number}")
            for number, each in enumerate(answers)
        ]
    return "".join(parts)


def _sections(each: Gathered, prefix: str, *, level: int) -> str:
    def head(text: str) -> str:
        return f"<h{level}>{escape(text)}</h{level}>"

    charts = [chart for curve in each.curves for chart in curve.charts]
    more = (
        f"{each.metrics_left} more metrics have curves: driftline curve {each.run.run} METRIC"
        if each.metrics_left
        else ""
    )
    notes = [
        f"{curve.title}: {note}" for curve in each.curves for note in curve.notes if "thinned" not in note
    ]
    parts = [head("Curves"), charts_of(charts, prefix=f"{prefix}c")]
    parts.append("" if charts else '<p class="note">No metric was logged at more than one step.</p>')
    parts += [f'<p class="note">{escape(note)}</p>' for note in [*notes, more] if note]
    for name, given in each.answers.items():
        parts += [head(HEADS[name]), body_of(given, prefix=f"{prefix}{name}", rows_max=20)]
    return "".join([*parts, head("Alerts"), _alerts(each.alerts), head("Facts"), _facts(each.facts)])


def _alerts(alerts: Sequence[Row]) -> str:
    if not alerts:
        return "<p>None.</p>"
    shown = table(
        "alerts",
        "",
        alerts,
        Column("rule"),
        Column("severity"),
        Column("state"),
        Column("rank"),
        Column("metric"),
        Column("step", "from step"),
        Column("last_step", "to step"),
        Column("opened", "opened, UTC"),
        Column("explanation", "what"),
    )
    return table_of(shown, rows_max=FACTS_MAX)


def _facts(facts: Sequence[Row]) -> str:
    if not facts:
        return "<p>None worth telling: no gap, no lateness, no missing rank.</p>"
    shown = table("facts", "", facts, Column("time", "time, UTC"), Column("what"), Column("text", ""))
    return table_of(shown, rows_max=FACTS_MAX)


def _config(each: Gathered) -> str:
    settings = flat(each.summary["config"])
    if not settings:
        return "<h2>Configuration</h2><p>None was given: driftline.init(..., config={...}) records it.</p>"
    rows = [{"key": key, "value": value} for key, value in settings.items()]
    return "<h2>Configuration</h2>" + table_of(table("config", "", rows, Column("key"), Column("value")))


def _lineage(runs: Sequence[Gathered], *, command: str, when: str, version: str) -> str:
    rows = [{"run": each.run.run, **row} for each in runs for row in each.source]
    shown = table(
        "source",
        "",
        rows,
        Column("run"),
        Column("topic_uuid", "telemetry topic"),
        Column("partition"),
        Column("records", form="count"),
        Column("last_offset", "last offset"),
        Column("received", "received, UTC"),
    )
    made = f"Made by driftline {version} on {when} UTC with:"
    return (
        f'<h2>What this page is from</h2><p class="note">{escape(made)}</p><pre>{escape(command)}</pre>'
        '<p class="note">All numbers are from the rows of these records; the SQL below each section gives '
        "them again.</p>" + table_of(shown)
    )
