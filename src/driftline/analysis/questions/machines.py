"""What the machines did, and what more of them gave."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Bars, Line, Part, Plot, line
from driftline.analysis.question import Asked, Query, Question, Rows, arguments
from driftline.analysis.values import duration, quantity, share
from driftline.analysis.words import count, listed

TOLD_MIN = 0.5
"""Correlations with throughput that are told, from there on, if they are beyond chance."""
SURE = 0.05
POINTS_MAX = 600
BARS_MAX = 16


def _used_queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, **asked.options}
    every, below = arguments(given, every="every"), arguments(given, below="below")
    return {
        "readings": Query(f"FROM utilisation($run{every})", given),
        "waste": Query(f"FROM gpu_waste($run{below})", given),
        "throughput": Query(f"FROM throughput_over_time($run{every}) ORDER BY start", given),
    }


def _show_used(asked: Asked, rows: Rows) -> Answer:
    readings, waste, pace = rows["readings"], rows["waste"], rows["throughput"]
    title = f"Utilisation of {asked.run.spoken}"
    if not readings and not pace:
        return Answer(
            "utilisation",
            title,
            empty="no readings of machines and no throughput: the SDK reads GPU, memory and network while a "
            "run is open (monitoring.metrics); log tokens_per_second for throughput",
        )
    says = [*_gpus(waste), *_pace(pace), *_together(readings)]
    says += [] if waste else ["No readings of a GPU."]
    tables = (
        table(
            "readings",
            "readings",
            readings,
            Column("host"),
            Column("device", "GPU"),
            Column("metric"),
            Column("mean", unit="@unit"),
            Column("p5", unit="@unit"),
            Column("p50", "median", unit="@unit"),
            Column("p95", unit="@unit"),
            Column("max", unit="@unit"),
            Column("correlation", "with throughput"),
            Column("q_value", "q", "p"),
            Column("odd", "not finite"),
        ),
        table(
            "waste",
            "GPU time paid for",
            waste,
            Column("host"),
            Column("device", "GPU"),
            Column("hours"),
            Column("unused_hours", "not used"),
            Column("mean", "used", unit="%"),
            Column("idle_share", "idle", "share"),
            Column("longest_idle_seconds", "longest idle", "seconds"),
        ),
    )
    return Answer("utilisation", title, tuple(says), tables, (*_used_bars(readings), *_pace_chart(pace)))


def _gpus(waste: Sequence[Row]) -> list[str]:
    hours = sum(row["hours"] or 0.0 for row in waste)
    if not hours:
        return []
    unused = sum(row["unused_hours"] or 0.0 for row in waste)
    return [
        f"{count(len(waste), 'GPU')} used {share(1 - unused / hours)} of {duration(hours * 3600)}: "
        f"{duration(unused * 3600)} paid for and not used."
    ]


def _pace(pace: Sequence[Row]) -> list[str]:
    values = sorted(row["throughput"] for row in pace if row["throughput"] is not None)
    if not values:
        return []
    middle, low = values[len(values) // 2], values[len(values) // 20]
    source = pace[0]["throughput_from"]
    return [
        f"Throughput ({source}): {quantity(middle)} in the middle, {quantity(low)} in the worst twentieth."
    ]


def _together(readings: Sequence[Row]) -> list[str]:
    told = [
        f"{row['metric']} of {_place(row)} ({row['correlation']:+.2f})"
        for row in readings
        if row["q_value"] is not None and row["q_value"] < SURE and abs(row["correlation"]) >= TOLD_MIN
    ]
    return [f"With throughput go {listed(told, 4)}."] if told else []


def _place(row: Row) -> str:
    host = row["host"] or "a host"
    return host if row["device"] is None else f"{host} GPU {row['device']}"


def _used_bars(readings: Sequence[Row]) -> tuple[Bars, ...]:
    parts = [row for row in readings if row["unit"] == "%" and row["mean"] is not None][:BARS_MAX]
    if not parts:
        return ()
    labels = tuple(f"{row['metric']}, {_place(row)}" for row in parts)
    return (Bars("Mean use", Axis("use", "%"), labels, (Part("mean", tuple(row["mean"] for row in parts)),)),)


def _pace_chart(pace: Sequence[Row]) -> tuple[Plot, ...]:
    if len(pace) < 2:
        return ()
    first = pace[0]["start"]
    shown = pace[:: max(1, len(pace) // POINTS_MAX)]
    minutes = [(row["start"] - first).total_seconds() / 60 for row in shown]
    values = line("throughput", minutes, [row["throughput"] for row in shown])
    return (Plot("Throughput", Axis("time", "min"), Axis(pace[0]["throughput_from"]), (values,)),)


def _scaling_queries(asked: Asked) -> dict[str, Query]:
    given = {"name": asked.run.name or None, "skip": asked.options.get("skip")}
    options = arguments(given, of_name="name", skip="skip").removeprefix(", ")
    return {"runs": Query(f"FROM scaling({options})", given)}


def _show_scaling(asked: Asked, rows: Rows) -> Answer:
    runs = [row for row in rows["runs"] if row["throughput"] is not None and row["ranks"]]
    title = f"Scaling of runs named {asked.run.name}" if asked.run.name else "Scaling of all runs"
    if not runs:
        return Answer(
            "scaling",
            title,
            empty="no steps to tell throughput by: log tokens_per_second (or throughput, tokens, step_time) "
            "with step=step, in runs of one name on different numbers of ranks",
        )
    shown = table(
        "runs",
        "",
        runs,
        Column("name"),
        Column("run"),
        Column("ranks"),
        Column("throughput"),
        Column("unit", ""),
        Column("throughput_from", "from"),
        Column("speedup", form="ratio"),
        Column("ideal_speedup", "ideal", "ratio"),
        Column("efficiency", form="share"),
        Column("steps", form="count"),
    )
    notes = (
        (f"these runs have {runs[0]['configs']} different configurations",)
        if (runs[0]["configs"] or 0) > 1
        else ()
    )
    charts = (_scaling_chart(runs),) if len({row["ranks"] for row in runs}) > 1 else ()
    return Answer("scaling", title, (*_scales(runs), _used(runs)), (shown,), charts, notes)


def _used(runs: Sequence[Row]) -> str:
    """What was taken for the throughput, and what that means."""
    sources = list(dict.fromkeys(row["throughput_from"] for row in runs))
    says = f"Throughput is from {listed(sources, 4)}"
    if len(sources) > 1:
        says += ": only runs of one source are compared"
    if any(source.startswith("steps per second") for source in sources):
        says += "; steps per second compare only runs of the same global batch"
    return says + "."


def _scales(runs: Sequence[Row]) -> list[str]:
    small, large = min(runs, key=lambda row: row["ranks"]), max(runs, key=lambda row: row["ranks"])
    if small["ranks"] == large["ranks"]:
        return [
            f"{count(len(runs), 'run has', 'runs have')} {count(small['ranks'], 'rank')}, and none another "
            "number: scaling needs runs of one name on several."
        ]
    says = [
        f"{large['ranks']} ranks give {large['speedup']:.2f} times the throughput of {small['ranks']} "
        f"({large['ideal_speedup']:.2f} would be ideal): an efficiency of {share(large['efficiency'])}."
    ]
    if large["serial_fraction"] is not None:
        says.append(f"As if {share(max(0.0, large['serial_fraction']))} of the work were serial (Amdahl).")
    if large["peak_ranks"] is not None:
        says.append(f"Throughput would peak at about {large['peak_ranks']:,.0f} ranks.")
    return says


def _scaling_chart(runs: Sequence[Row]) -> Plot:
    ordered = sorted(runs, key=lambda row: row["ranks"])
    ranks = [row["ranks"] for row in ordered]
    measured: Line = line("measured", ranks, [row["throughput"] for row in ordered], form="points")
    ideal = line("ideal", ranks, [row["ideal_throughput"] for row in ordered], faint=True)
    return Plot("Throughput by ranks", Axis("ranks"), Axis(ordered[0]["throughput_from"]), (ideal, measured))


UTILISATION = Question("utilisation", _used_queries, _show_used, timed=lambda asked: True)
SCALING = Question("scaling", _scaling_queries, _show_scaling, timed=lambda asked: True)
