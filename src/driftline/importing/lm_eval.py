"""Results of lm-evaluation-harness -> evaluations, with standard errors, numbers of items, and samples.

    results[task]["acc,none"], ["acc_stderr,none"]     -> metrics of suite task (once "acc", "acc_stderr")
    n-samples[task]["effective"]                       -> count of each metric
    versions[task]                                     -> suite version
    date, or the time in the file's name               -> time
    config.model_args, model_name, the path            -> run and step
    samples_<task>_<time>.jsonl beside it              -> items: doc_id, target, filtered_resps

A metric keeps its name without the filter "none"; another filter stays in it ("exact_match,strict-match"). A
step is found where a path or revision says ``step143000``, ``checkpoint-500``, ``global_step_20`` or
``iter_0000100``. Groups of tasks (results that are means of others) are kept like tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driftline import events
from driftline.errors import BadData
from driftline.events import number
from driftline.importing.items import Evaluated, Item, Tally, carried
from driftline.importing.lines import Lines
from driftline.importing.reading import Reading
from driftline.importing.tables import metric_of
from driftline.importing.unpacked import MAX_DOCUMENT, content, digest
from driftline.importing.values import plain, span

_STEP = re.compile(r"(?:global_?step|checkpoint|ckpt|step|iter)[-_=]?0*(\d{1,18})(?!\d)", re.IGNORECASE)
_NAMED_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)[-:](\d\d)[-:](\d\d(?:\.\d+)?)")
_ARGUMENT = re.compile(r"(?:^|,)\s*(pretrained|model|revision|path|peft)=([^,]*)")
_NO_METRICS = frozenset(("alias", "name", "sample_len", "samples", "sample_count", "task"))
_MAX_TEXT = 20_000


def looks_like(document: object) -> bool:
    """Whether a JSON document is one of the harness."""
    if not isinstance(document, dict):
        return False
    results = document.get("results")
    other = ("versions", "config", "configs", "n-shot", "config_general")
    return (
        isinstance(results, dict)
        and any(isinstance(found, dict) for found in results.values())
        and any(key in document for key in other)
    )


def results_files(folder: Path) -> tuple[Path, ...]:
    """The results below a folder, by what they contain."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        if path.name.startswith("results") and path.is_file():
            try:
                document = json.loads(content(path, MAX_DOCUMENT))
            except (ValueError, RecursionError, BadData):
                continue
            if looks_like(document):
                found.append(path)
    return tuple(found)


class ResultsSource:
    """Files of results. The limit of each is 1: it is written once."""

    def __init__(self, root: Path, files: Sequence[Path], reading: Reading, tally: Tally) -> None:
        folder = root.parent if root.is_file() else root
        self.tally = tally
        self._reading = reading
        self._files = {
            path.relative_to(folder)
            .as_posix()
            .encode("utf-8", "surrogateescape")
            .decode("utf-8", "replace"): path
            for path in files
        }

    def limits(self) -> dict[str, int]:
        return dict.fromkeys(sorted(self._files), 1)

    def digest(self, limits: dict[str, int]) -> str:
        hashed = hashlib.blake2b(digest_size=16)
        for name, limit in sorted(limits.items()):
            if limit:
                hashed.update(digest(self._files[name], MAX_DOCUMENT) if name in self._files else b"gone")
        return hashed.hexdigest()

    torn = False

    @property
    def finished(self) -> bool:
        return True

    def part(self, name: str) -> ResultsPart:
        return ResultsPart(name, self._files[name], self._reading, self.tally)


class ResultsPart:
    """One file: an evaluation for each task."""

    def __init__(self, name: str, path: Path, reading: Reading, tally: Tally) -> None:
        self._name, self._path, self._reading, self._tally = name, path, reading, tally
        self.position = 0

    def upto(self, limit: int, *, whole: bool) -> Iterator[Item]:
        if self.position >= limit:
            return
        self.position = 1
        try:
            document = _clean(json.loads(content(self._path, MAX_DOCUMENT)))
        except (ValueError, RecursionError) as error:
            raise BadData(f"{self._path} is not whole JSON: {error}") from error
        if not looks_like(document):
            raise BadData(f"{self._path} has no results of lm-evaluation-harness")
        model, step = model_and_step(document, self._name)
        if self._reading.step_given is not None:
            step = self._reading.step_given
        if step is None:
            self._tally.note(
                f"{self._name}: no step in its path or model: evaluations without one (--step N)"
            )
        time_us = _time(document, self._path)
        if time_us is None:
            self._tally.note(
                f"{self._name}: no date in it or in its name: the time at which it was written (--start)"
            )
        results = document["results"]
        for line, (task, found) in enumerate(results.items(), 1):
            metrics = self._metrics(task, found, line, document) if isinstance(found, dict) else []
            if not metrics:
                self._tally.refuse(self._name, line, "line", f"{task}: no numbers")
                continue
            only = len(results) == 1
            yield Evaluated(
                suite=task,
                metrics=metrics,
                step=step,
                time_us=time_us,
                run="" if self._reading.given_run else model,
                version=str(_of(document, "versions", task) or "1"),
                uri=model,
                seconds=_seconds(document) if only else 0.0,
                settings=_settings(document, task),
                items=self._items(task),
            )

    def _metrics(
        self, task: str, found: dict[str, Any], line: int, document: dict[str, Any]
    ) -> list[events.Metric]:
        counted = _of(document, "n-samples", task)
        count = counted.get("effective") if isinstance(counted, dict) else found.get("sample_len")
        count = count if isinstance(count, int) and 0 <= count < 1 << 63 else 0
        made = []
        for key, said in found.items():
            name, _, filtered = key.partition(",")
            if key in _NO_METRICS or name.endswith("_stderr"):
                continue
            value = plain(said)
            if not isinstance(value, float):
                self._tally.refuse(self._name, line, value, f"{task} {key}: {said!r}"[:200], once=key)
                continue
            error = plain(found.get(f"{name}_stderr,{filtered}" if filtered else f"{name}_stderr"))
            shown = name if filtered in ("", "none") else key
            made.append(metric_of(shown, value, error if isinstance(error, float) else None, count))
        return made

    # --- samples -------------------------------------------------------------------------------------------

    def _items(self, task: str) -> Iterator[events.Item] | None:
        stamp = self._path.stem.removeprefix("results")
        for ending in ("jsonl", "jsonl.gz"):
            path = self._path.parent / f"samples_{task}{stamp}.{ending}"
            if path.parent == self._path.parent and os.path.isfile(path):  # a task may be called "../x"
                return self._samples(path)
        return None

    def _samples(self, path: Path) -> Iterator[events.Item]:
        for line in Lines(path).upto(1 << 62, whole=True):
            try:
                found = _clean(json.loads(line.data or b"null"))
            except (ValueError, RecursionError) as error:
                self._tally.refuse(path.name, line.number, "line", f"not JSON: {error}")
                continue
            if isinstance(found, dict):
                yield _item(found, line.number)
            elif line.data is None or line.data.strip():
                self._tally.refuse(path.name, line.number, "line", "no JSON object, or too long")


def _item(found: dict[str, Any], line: int) -> events.Item:
    """A sample; its verdict is the first of the usual metrics that says 0 or 1."""
    score = next(
        (value for key in _VERDICTS if isinstance(value := plain(found.get(key)), float)),
        None,
    )
    status: events.ItemStatus = "correct" if score == 1.0 else "wrong" if score == 0.0 else "scored"
    shown = str(found.get("doc_id", line))
    if found.get("filter") not in (None, "none"):
        shown = f"{shown},{found['filter']}"
    return events.Item(
        item=shown[:256],
        status=status,
        score=None if score is None else number(score),
        response=_text(found.get("filtered_resps", found.get("resps"))),
        expected=_text(found.get("target")),
    )


def _clean(value: Any) -> Any:
    """A JSON value whose texts UTF-8 can carry."""
    if isinstance(value, str):
        return carried(value)
    if isinstance(value, dict):
        return {carried(name): _clean(inner) for name, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


_VERDICTS = ("exact_match", "acc", "pass@1", "em", "acc_norm", "f1", "score")


def _text(value: object) -> str:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()[:_MAX_TEXT]


# --- what a document says of itself ------------------------------------------------------------------------


def model_and_step(document: dict[str, Any], name: str) -> tuple[str, int | None]:
    """The model, without what names its step, and the step.

    >>> model_and_step({"config": {"model_args": "pretrained=org/m-160m,revision=step143000"}}, "r.json")
    ('org/m-160m', 143000)
    >>> model_and_step({"config": {"model_args": {"pretrained": "out/run7/checkpoint-500"}}}, "r.json")
    ('out/run7', 500)
    """
    config = document.get("config")
    said = config.get("model_args") if isinstance(config, dict) else None
    if isinstance(said, dict):
        arguments = {key: str(value) for key, value in said.items()}
    else:
        arguments = dict(_ARGUMENT.findall(said)) if isinstance(said, str) else {}
    model = next(
        (arguments[key] for key in ("pretrained", "model", "path", "peft") if arguments.get(key)), ""
    )
    model = model or str(document.get("model_name") or "")
    step = next(
        (
            int(found[-1])
            for text in (arguments.get("revision", ""), model, name)
            if (found := _STEP.findall(text))
        ),
        None,
    )
    pieces = [piece for piece in model.rstrip("/").split("/") if piece]
    if len(pieces) > 1 and _STEP.fullmatch(pieces[-1]):
        model = model.rstrip("/").rpartition("/")[0]
    return model, step


def _time(document: dict[str, Any], path: Path) -> int | None:
    date = document.get("date")
    if isinstance(date, int | float) and not isinstance(date, bool) and date > 0:
        return span(date, "s")
    found = _NAMED_TIME.search(path.name)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}:{found[3]}:{found[4]}").replace(tzinfo=UTC)
    except ValueError:
        return None
    return round(moment.timestamp() * 1e6)


def _seconds(document: dict[str, Any]) -> float:
    try:
        return max(0.0, float(document.get("total_evaluation_time_seconds") or 0.0))
    except (TypeError, ValueError):
        return 0.0


def _settings(document: dict[str, Any], task: str) -> dict[str, Any]:
    """What a comparison needs to be fair."""
    config = document.get("config")
    made: dict[str, Any] = {}
    if isinstance(config, dict):
        for key in ("model", "model_args", "batch_size", "device", "limit", "num_fewshot", "gen_kwargs"):
            if isinstance(config.get(key), str | int | float | bool):
                made[key] = config[key]
    shots = _of(document, "n-shot", task)
    if isinstance(shots, int):
        made["num_fewshot"] = shots
    if seconds := _seconds(document):
        made["file_seconds"] = seconds
    return made


def _of(document: dict[str, Any], key: str, task: str) -> Any:
    found = document.get(key)
    return found.get(task) if isinstance(found, dict) else None
