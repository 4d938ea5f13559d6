"""What a configuration change bought: metric gained against time and money."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Bars, Part
from driftline.analysis.question import Asked, Query, Question, Rows, arguments, labels
from driftline.analysis.values import duration, unit_of_time
from driftline.analysis.words import UNIT_OF_METRIC, interval, listed, settings_changed, unit_of

SETTINGS_MAX = 6


def _queries(asked: Asked) -> dict[str, Query]:
    first, second = asked.runs[:2]
    given = {"a": first.run, "b": second.run, "run": second.run, "metric": asked.metric, **asked.options}
    options = arguments(given, price="price", token_metric="tokens", last_part="last", better="better")
    return {
        "cost": Query(f"FROM cost($a, $b, $metric{options})", given),
        "settings": Query("FROM config_diff($a, $b)", given),
        "declared": Query(UNIT_OF_METRIC, given),
    }


def _show(asked: Asked, rows: Rows) -> Answer:
    first, second = asked.runs[:2]
    title = f"What {second.spoken} bought over {first.spoken}"
    if not rows["cost"] or None in (rows["cost"][0]["hours_a"], rows["cost"][0]["hours_b"]):
        return Answer("cost", title, empty=f"the runs have no common part of {asked.metric}")
    found, unit = rows["cost"][0], unit_of(asked.metric, rows["declared"])
    one, other = labels((first, second))
    says = [_gained(found, asked, other, unit), _spent(found, one, other), *_reached(found, one, other)]
    chart = _chart(found, (one, other))
    settings = table(
        "settings",
        "settings that differ",
        rows["settings"],
        Column("setting"),
        Column("a", one),
        Column("b", other),
        Column("what"),
    )
    told = table(
        "cost",
        "",
        rows["cost"],
        Column("gain", unit=unit),
        Column("gain_low", "low"),
        Column("gain_high", "high"),
        Column("hours_a", f"hours, {one}"),
        Column("hours_b", f"hours, {other}"),
        Column("eval_hours_a", f"evaluation, {one}"),
        Column("eval_hours_b", f"evaluation, {other}"),
        Column("devices_a", f"ranks, {one}"),
        Column("devices_b", f"ranks, {other}"),
        Column("gain_per_hour", "gain per extra hour"),
        Column("gain_per_money", "gain per money"),
        drawn=True,
    )
    notes = (*_unknown(found, (one, other)), *_why(found, rows))
    return Answer("cost", title, tuple(says), (told, settings), (chart,), notes)


def _chart(found: Row, names: tuple[str, str]) -> Bars:
    """Hours of training, and those of evaluation that are known."""
    hours = {"training": "hours", "evaluation": "eval_hours"}
    spent = {name: [found[f"{of}_{side}"] for side in "ab"] for name, of in hours.items()}
    known = {name: of for name, of in spent.items() if any(value is not None for value in of)}
    rows = {name: [3600 * value if value is not None else 0.0 for value in of] for name, of in known.items()}
    size, unit = unit_of_time(max(map(sum, zip(*rows.values(), strict=True))))
    parts = tuple(Part(name, tuple(seconds / size for seconds in of)) for name, of in rows.items())
    return Bars("Time", Axis("time", unit), names, parts)


def _gained(found: Row, asked: Asked, other: str, unit: str) -> str:
    if found["gain"] is None:
        verdict = found["verdict"] or "no verdict"
        return f"{asked.metric}: {verdict}; say which way is better with --better max or min."
    words = interval(found["gain"], found["gain_low"], found["gain_high"], unit)
    verdict = (found["verdict"] or "no verdict").replace("b is", f"{other} is")
    return f"{asked.metric}: {verdict}; gained {words} (95 % interval, better is {found['direction']})."


def _spent(found: Row, first: str, second: str) -> str:
    extra = found["hours_b"] - found["hours_a"]
    words = f"{duration(abs(extra) * 3600)} {'more' if extra >= 0 else 'less'}"
    money = ""
    if found["money_a"] is not None and found["money_b"] is not None:
        money = f", {found['money_b']:,.2f} instead of {found['money_a']:,.2f} in money"
    return f"{second} took {duration(found['hours_b'] * 3600)}, {words} than {first}{money}."


def _reached(found: Row, first: str, second: str) -> list[str]:
    if found["hours_to_level_a"] is None:
        return []
    if found["hours_to_level_b"] is None:
        return [f"{second} did not reach the final level of {first}."]
    faster = f", {found['speed_up']:.2f} times as fast" if found["speed_up"] is not None else ""
    times = (duration(found[f"hours_to_level_{side}"] * 3600) for side in "ba")
    return [f"To the final level of {first} it took {next(times)} instead of {next(times)}{faster}."]


def _unknown(found: Row, names: tuple[str, str]) -> tuple[str, ...]:
    """What money does not have in it, since nobody told it."""
    if found["money_a"] is None and found["money_b"] is None:
        return ()
    unknown = [name for name, side in zip(names, "ab", strict=True) if found[f"devices_{side}"] is None]
    if not unknown:
        return ()
    return (f"the number of ranks of {listed(unknown)} is not known, and counted as one",)


def _why(found: Row, rows: Rows) -> tuple[str, ...]:
    notes = [found["why"]] if found.get("why") else []
    return (*notes, settings_changed(rows["settings"], SETTINGS_MAX))


COST = Question("cost", _queries, _show, runs=(2, 2), metrics=(1, 1), timed=lambda asked: True)
