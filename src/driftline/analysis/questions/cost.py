"""What a configuration change bought: metric gained against time and money."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Bars, Part
from driftline.analysis.question import Asked, Query, Question, Rows, arguments, labels
from driftline.analysis.values import duration, unit_of_time
from driftline.analysis.words import UNIT_OF_METRIC, interval, settings_changed, unit_of

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
    spent = [tuple(3600 * (found[f"{of}_{side}"] or 0.0) for side in "ab") for of in ("hours", "eval_hours")]
    size, name = unit_of_time(max(map(sum, zip(*spent, strict=True))))
    parts = tuple(
        Part(name, tuple(seconds / size for seconds in of))
        for name, of in zip(("training", "evaluation"), spent, strict=True)
    )
    chart = Bars("Time", Axis("time", name), (one, other), parts)
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
        Column("devices_a", f"ranks, {one}"),
        Column("devices_b", f"ranks, {other}"),
        Column("gain_per_hour", "gain per extra hour"),
        Column("gain_per_money", "gain per money"),
        drawn=True,
    )
    return Answer("cost", title, tuple(says), (told, settings), (chart,), _why(found, rows))


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


def _why(found: Row, rows: Rows) -> tuple[str, ...]:
    notes = [found["why"]] if found.get("why") else []
    return (*notes, settings_changed(rows["settings"], SETTINGS_MAX))


COST = Question("cost", _queries, _show, runs=(2, 2), metrics=(1, 1), timed=lambda asked: True)
