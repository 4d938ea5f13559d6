"""From a number back to its records, offsets and configuration."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, table
from driftline.analysis.question import Asked, Query, Question, Rows
from driftline.analysis.words import count, listed


def _queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, "metric": asked.metric}
    last = "SELECT max(step) AS step FROM {0} WHERE run = $run AND metric = $metric"
    return {
        "step": Query(last.format("samples"), given),
        "eval_step": Query(last.format("evals"), given),
    }


def _details(asked: Asked, rows: Rows) -> dict[str, Query]:
    step = asked.options.get("step")
    given = {"run": asked.run.run, "metric": asked.metric}
    sample_step = step if step is not None else rows["step"][0]["step"]
    eval_step = step if step is not None else rows["eval_step"][0]["step"]
    queries = {}
    if sample_step is not None:
        at = {**given, "step": sample_step}
        queries["samples"] = Query("FROM lineage($run, $metric, of_step := $step)", at)
        queries["rests"] = Query("FROM rests_on($run, $metric, $step)", at)
    if eval_step is not None:
        at = {**given, "step": eval_step}
        queries["evals"] = Query("FROM eval_lineage($run, of_metric := $metric, of_step := $step)", at)
    return queries


def _show(asked: Asked, rows: Rows) -> Answer:
    samples, rests, evals = (rows.get(name, []) for name in ("samples", "rests", "evals"))
    step = asked.options.get("step")
    title = f"Where {asked.metric} of {asked.run.spoken} comes from"
    if not samples and not evals:
        at = f" at step {step}" if step is not None else " with a step"
        return Answer(
            "lineage", title, empty=f"no number of {asked.metric}{at}: driftline curve shows its steps"
        )
    says = []
    if samples:
        partitions = {(row["topic_uuid"], row["partition"]) for row in samples}
        offsets = [row["offset"] for row in samples]
        says.append(
            f"At step {samples[0]['step']} it is made of {count(len(samples), 'sample')}, in records "
            f"{min(offsets):,} to {max(offsets):,} of {count(len(partitions), 'partition')}, logged by "
            f"{count(len({row['process'] for row in samples}), 'process', 'processes')}."
        )
        digests = sorted({str(row["pipeline_config"]) for row in samples if row["pipeline_config"]})
        says.append(
            f"Pipeline configuration: {listed(digests, 3)}."
            if digests
            else "No pipeline configuration is stored."
        )
        says.append(f"{count(len(rests), 'window or alert rests', 'windows and alerts rest')} on it.")
    if evals:
        first = evals[0]
        says.append(
            f"Evaluated at step {first['step']} by {first['evaluator']} on checkpoint {first['uri']} "
            f"(weights {first['weights_digest'] or 'not hashed'}), request {first['request']}."
        )
    tables = (
        table(
            "samples",
            "samples",
            samples,
            Column("step"),
            Column("rank"),
            Column("value"),
            Column("in_curve", "in curve"),
            Column("attempt"),
            Column("host"),
            Column("process"),
            Column("seq"),
            Column("topic_uuid", "topic"),
            Column("partition"),
            Column("offset"),
            Column("ordinal"),
            Column("received", "received, UTC"),
            Column("pipeline_config", "configuration"),
        ),
        table(
            "rests_on",
            "what rests on it",
            rests,
            Column("kind"),
            Column("name"),
            Column("group"),
            Column("revision"),
            Column("value"),
            Column("partition"),
            Column("offset"),
            Column("ordinal"),
        ),
        table(
            "evals",
            "evaluation",
            evals,
            Column("suite"),
            Column("step"),
            Column("value"),
            Column("stderr"),
            Column("count", "items", "count"),
            Column("evaluator"),
            Column("device"),
            Column("request"),
            Column("lease"),
            Column("checkpoint"),
            Column("uri"),
            Column("weights_digest", "weights"),
            Column("suite_digest", "suite"),
            Column("settings"),
            Column("saved_offset", "saved at offset"),
        ),
    )
    given = {"run": asked.run.run, "metric": asked.metric, "step": (samples or evals)[0]["step"]}
    macro = "lineage($run, $metric" if samples else "eval_lineage($run, of_metric := $metric"
    sql = Query(f"FROM {macro}, of_step := $step)", given).literal
    return Answer("lineage", title, tuple(says), tables, sql=(sql,))


LINEAGE = Question("lineage", _queries, _show, then=_details, metrics=(1, 1), of="any")
