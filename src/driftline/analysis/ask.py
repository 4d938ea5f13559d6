"""Opens the tables, finds the runs and metrics that were named, asks, and gives the answer.

Words that name runs come first, by id or name; what follows are metrics. A single word that names no run is a
metric of the newest run.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from driftline.analysis.answer import Answer, Row
from driftline.analysis.question import Asked, Of, Query, Question, Run
from driftline.errors import BadData
from driftline.metric_names import SPAN_PREFIX
from driftline.storage.open import Catalog

NEAR = 5
LISTED = 12
_METRICS = {
    "samples": "SELECT DISTINCT metric FROM samples WHERE run = $run ORDER BY metric",
    "spans": "SELECT DISTINCT metric FROM samples WHERE run = $run ORDER BY metric",
    "any": "SELECT metric FROM samples WHERE run = $run "
    "UNION SELECT metric FROM evals WHERE run = $run AND metric IS NOT NULL ORDER BY metric",
    "evals": "SELECT DISTINCT metric FROM evals WHERE run = $run AND metric IS NOT NULL ORDER BY metric",
}
_RUNS = "SELECT run, name, started, outcome FROM runs ORDER BY started DESC NULLS LAST, run DESC"
_WITH_GOAL = (
    'SELECT metric FROM metric_definitions WHERE run = $run AND goal IS NOT NULL ORDER BY "offset", metric'
)

_WITHOUT_TIMES = ("csv", "jsonl", "trainer_state")
"""Formats whose rows have times only where a column of them was named or found."""


def ask(
    catalog: Catalog, question: Question, words: Sequence[str], options: Mapping[str, Any]
) -> tuple[Asked, Answer]:
    """What was understood, and the answer to it.

    Raises:
        BadData: no such run or metric (with near ones), no runs at all, or a table is broken.
    """
    asked = understood(catalog, question, words, options)
    return asked, answer(catalog, question, asked)


def answer(
    catalog: Catalog, question: Question, asked: Asked, *, timeless: tuple[str, ...] | None = None
) -> Answer:
    """The answer to what is understood already; ``timeless``: what :func:`without_times` says, if known."""
    queries = question.queries(asked)
    rows = {name: rows_of(catalog, query) for name, query in queries.items()}
    if question.then is not None:
        more = question.then(asked, rows)
        rows |= {name: rows_of(catalog, query) for name, query in more.items()}
    given = question.show(asked, rows)
    main = tuple(query.literal for query in queries.values())[:1]
    notes: tuple[str, ...] = ()
    if question.timed(asked) and not given.empty:
        notes = without_times(catalog, asked.runs) if timeless is None else timeless
    return replace(given, notes=(*asked.notes, *notes, *given.notes), sql=given.sql or main)


def without_times(catalog: Catalog, runs: Sequence[Run]) -> tuple[str, ...]:
    """What to say of runs whose source had no times, so that the import made them up."""
    asking = Query(
        "SELECT run, config FROM runs WHERE list_contains($runs, run)", {"runs": [r.run for r in runs]}
    )
    configs = {row["run"]: row["config"] for row in rows_of(catalog, asking)}
    return tuple(
        f"{run.called} was imported without times: each step stands for a second, so what comes of the clock "
        "(wall time, throughput) means nothing"
        for run in runs
        if _made_up(configs.get(run.run))
    )


def _made_up(config: str | None) -> bool:
    try:
        read = json.loads(config or "{}")
    except ValueError:
        return False
    how = read.get("import") if isinstance(read, dict) else None
    if not isinstance(how, dict):
        return False
    return how.get("format") in _WITHOUT_TIMES and not how.get("time") and not how.get("elapsed")


def rows_of(catalog: Catalog, query: Query) -> list[Row]:
    """The rows of one query as dictionaries."""
    named = set(re.findall(r"\$(\w+)", query.sql))
    used = {name: value for name, value in query.parameters.items() if name in named}
    rows: list[Row] = catalog.query(query.sql, used or None).to_pylist()
    return rows


def understood(
    catalog: Catalog, question: Question, words: Sequence[str], options: Mapping[str, Any]
) -> Asked:
    """Which runs and metrics ``words`` name."""
    known = known_runs(catalog)
    runs, notes = _runs(known, words, question.runs[1])
    rest = list(words[len(runs) :])
    named = {run.run: word for run, word in zip(runs, words, strict=False)}
    if question.runs[1] and rest and (len(rest) > question.metrics[1] or not question.metrics[1]):
        raise _no_run(rest[0], known)
    if len(runs) < question.runs[0]:
        others = [run for run in known if run not in runs]
        runs += others[: question.runs[0] - len(runs)]
        runs.sort(key=lambda run: known.index(run), reverse=True)  # the older first
    if len(runs) < question.runs[0]:
        raise BadData(f"{question.name} needs {question.runs[0]} runs, and there is only {runs[0].spoken}")
    metrics = tuple(_metric(catalog, question.of, runs, word, known) for word in rest)
    if len(metrics) < question.metrics[0]:
        metrics += _default_metric(catalog, question, runs[0])
    return Asked(tuple(runs), metrics, options, () if options.get("final") else tuple(notes), named)


def known_runs(catalog: Catalog) -> list[Run]:
    """All runs, the newest first. Raises BadData where there is none."""
    known = [Run(**row) for row in rows_of(catalog, Query(_RUNS))]
    if not known:
        raise BadData(f"no runs in {catalog.root} yet: a sink writes what trainers log; try driftline demo")
    return known


def named_runs(catalog: Catalog, words: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs that all ``words`` name (the newest, if there are none), and what to say of their names.

    Raises:
        BadData: one of them names no run.
    """
    known = known_runs(catalog)
    if not words:
        return known[:1], []
    runs, notes = _runs(known, words, len(words))
    if len(runs) < len(words):
        raise _no_run(words[len(runs)], known)
    return list(dict.fromkeys(runs)), notes


def known_metric(catalog: Catalog, run: Run, word: str) -> str:
    """A metric of the run's samples. Raises BadData, with near names, if it is none."""
    return _metric(catalog, "samples", [run], word, [])


def _runs(known: Sequence[Run], words: Sequence[str], most: int) -> tuple[list[Run], list[str]]:
    """The runs that the first words name, and what to say of names that several have."""
    ids = {run.run: run for run in known}
    runs: list[Run] = []
    notes: list[str] = []
    for word in words[:most]:
        named = [run for run in known if run.name == word and run.name]
        if word in ids:
            runs.append(ids[word])
        elif named:
            runs.append(named[0])
            if len(named) > 1:
                notes.append(
                    f"{len(named)} runs are named {word}; this is the newest, {named[0].run}"
                    + (f", of {named[0].started:%Y-%m-%d %H:%M:%S} UTC" if named[0].started else "")
                )
        else:
            break
    return runs, notes


def _no_run(word: str, known: Sequence[Run]) -> BadData:
    names = list(dict.fromkeys(name for run in known for name in (run.name, run.run) if name))
    return BadData(f"no run {word!r}: {_near(word, names, 'runs')}")


def _metric(
    catalog: Catalog,
    of: Of,
    runs: Sequence[Run],
    word: str,
    known: Sequence[Run],
) -> str:
    if of == "samples" and _is_metric(catalog, runs[0], word):
        return word
    there = _known_metrics(catalog, of, runs[0])
    if of == "spans" and SPAN_PREFIX + word in there:
        return SPAN_PREFIX + word
    if word in there:
        return word
    elsewhere = ""
    if of == "samples" and word in _known_metrics(catalog, "evals", runs[0]):
        elsewhere = f" ({word} is a metric of evaluations: driftline evals)"
    if of == "evals" and word in _known_metrics(catalog, "samples", runs[0]):
        elsewhere = f" ({word} is a metric of the training: driftline curve)"
    what = {"samples": "metric", "evals": "evaluated metric", "spans": "span or metric", "any": "metric"}[of]
    names = [*there, *dict.fromkeys(name for run in known for name in (run.name, run.run) if name)]
    raise BadData(
        f"run {runs[0].spoken} has no {what} {word!r}{elsewhere}: {_near(word, names, f'{what}s', there)}"
    )


def _known_metrics(catalog: Catalog, of: Of, run: Run) -> list[str]:
    return [row["metric"] for row in rows_of(catalog, Query(_METRICS[of], {"run": run.run}))]


def _is_metric(catalog: Catalog, run: Run, word: str) -> bool:
    """Whether the run has samples of it: reads far less than the list of all metrics."""
    asking = Query(
        "SELECT 1 AS one FROM samples WHERE run = $run AND metric = $word LIMIT 1",
        {"run": run.run, "word": word},
    )
    return bool(rows_of(catalog, asking))


def _default_metric(catalog: Catalog, question: Question, run: Run) -> tuple[str]:
    there = _known_metrics(catalog, question.of, run)
    if not there:
        raise BadData(f"run {run.spoken} has no samples: log some with run.log({{...}}, step=step)")
    for row in rows_of(catalog, Query(_WITH_GOAL, {"run": run.run})):
        if row["metric"] in there:
            return (row["metric"],)
    if len(there) == 1:
        return (there[0],)
    raise BadData(
        f"name a metric of run {run.spoken}: {_listed(there)} (one with a goal, run.define(..., goal=...), "
        "is the default)"
    )


def _near(word: str, names: Sequence[str], what: str, listed: Sequence[str] | None = None) -> str:
    """What somebody may have meant; ``listed``: what there is, if ``names`` has more."""
    lower = {name.casefold(): name for name in reversed(names)}
    close = [lower[n] for n in difflib.get_close_matches(word.casefold(), list(lower), n=NEAR, cutoff=0.6)]
    close += [name for name in names if word and word.casefold() in name.casefold() and name not in close]
    if close:
        return f"did you mean {_listed(close[:NEAR])}?"
    return f"{what} there are: {_listed(names if listed is None else listed)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more if names else "none"
