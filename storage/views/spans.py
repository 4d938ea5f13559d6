"""The parts of a training step, per process: what its spans took, each second counted once.

A span is a sample ``span/<name>`` of a step: its seconds, logged when it ended. So it lasted from ``time``
minus its seconds to ``time``, on the clock of its own process, and what was open when it ended (of the same
process and step) is what it is nested in: ``self_seconds`` leaves the nested ones out. A start counts a ten
thousandth of the span late, since the two clocks of a span are not one. Spans that were logged by one call
(with one time) lie side by side. Spans that overlap otherwise (threads, streams) are counted once: what
waits for other ranks gives way to what works, and equals share. Where a run has no spans, what its trainer
logs under the names of ``STAND_INS`` is taken for them.

Forked children are left out (they work beside their parent), and so are processes of another role. What is
not a number of seconds from 0 to ``LONGEST`` is counted (``odd``) and nowhere else.
"""

from __future__ import annotations

from driftline.metric_names import SPAN_PREFIX
from driftline.storage.views.view import View

STAND_INS = (
    "data_loading_time",
    "forward_time",
    "backward_time",
    "gradient_update_time",
    "communication_time",
)

LONGEST = 1e9
"""Seconds; what is longer is no duration."""
_AFTER_PREFIX = SPAN_PREFIX[:-1] + chr(ord(SPAN_PREFIX[-1]) + 1)
_NAMES = ", ".join(f"'{name}'" for name in STAND_INS)

_WORD = "(^|[^a-z])"
_END = "([^a-z]|$)"
KINDS = {
    "evaluation": f"{_WORD}(eval|valid|(val|test){_END})",
    "checkpoint": f"{_WORD}(checkpoint|ckpt|(save|saving){_END})",
    "data": f"{_WORD}(dataload|(data|fetch|input){_END}|(get|next|load)[^a-z]?batch)",
    "wait": f"{_WORD}(wait|barrier|sync|nccl|communication|comm{_END}|all[^a-z]?(reduce|gather|to)"
    f"|(reduce|gather|scatter|broadcast|send|recv|receive|p2p|idle){_END})",
    "total": "^(train|training)?[^a-z]*(step|iteration|iter)$",
}
"""What a span is, by its name in small letters; the first that matches, else "work"."""

_SPAN_KIND = View(
    "span_kind",
    "what a span is by its name (without `span/`): evaluation, checkpoint, data, wait (for other ranks: "
    "communication too), total (the whole step) or work",
    "CASE WHEN regexp_matches(lower(span), 'data.?parallel') THEN 'wait' "
    + " ".join(f"WHEN regexp_matches(lower(span), '{words}') THEN '{kind}'" for kind, words in KINDS.items())
    + " ELSE 'work' END",
    "SELECT span_kind('forward'), span_kind('all_reduce'), span_kind('eval/gsm8k'), span_kind('data')",
    "span",
)

_STEP_SPANS = View(
    "step_spans",
    "one span of one step of one process; of each step the newest attempt, or with `all_attempts := "
    "true` each one",
    f"""
    TABLE
    WITH strangers AS (
        SELECT p.process FROM process_events AS p
        WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'started'
          AND (p.parent IS NOT NULL OR p.role <> of_role)),
    spans AS (
        SELECT s.attempt, s.step, s.process, s.rank, substr(s.metric, {len(SPAN_PREFIX) + 1}) AS span,
            s.value, epoch_us(s.time) AS us, s."offset" AS at, s.ordinal
        FROM sample_attempts AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.metric >= '{SPAN_PREFIX}' AND s.metric < '{_AFTER_PREFIX}'
          AND s.step IS NOT NULL AND s.process NOT IN (SELECT o.process FROM strangers AS o)),
    stand_ins AS (
        SELECT s.attempt, s.step, s.process, s.rank, s.metric AS span, s.value, epoch_us(s.time) AS us,
            s."offset" AS at, s.ordinal
        FROM sample_attempts AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.metric IN ({_NAMES}) AND s.step IS NOT NULL
          AND s.process NOT IN (SELECT o.process FROM strangers AS o)
          AND NOT EXISTS (FROM spans)),
    found AS MATERIALIZED (
        SELECT *, CASE WHEN f.value BETWEEN 0 AND {LONGEST:.0e} THEN f.value END AS took
        FROM (FROM spans UNION ALL FROM stand_ins) AS f
        QUALIFY all_attempts OR f.attempt = max(f.attempt) OVER (PARTITION BY f.step)),
    timed AS MATERIALIZED (
        SELECT f.*,
            lag(f.us) OVER w > f.us - f.took * 0.999e6 + 2 AND lag(f.us) OVER w < f.us AS overlaps
        FROM found AS f WHERE f.took IS NOT NULL
        WINDOW w AS (PARTITION BY f.attempt, f.step, f.process ORDER BY f.us, f.at, f.ordinal)),
    tangled AS (SELECT DISTINCT t.attempt, t.step, t.process FROM timed AS t WHERE t.overlaps),
    laid AS MATERIALIZED (
        SELECT t.attempt, t.step, t.process, t.span, t.took,
            row_number() OVER (ORDER BY t.us, t.at, t.ordinal) AS id,
            t.us - 1e6 * coalesce(sum(t.took) OVER (
                PARTITION BY t.attempt, t.step, t.process, t.us ORDER BY t.at DESC, t.ordinal DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS end_us
        FROM timed AS t SEMI JOIN tangled AS w
          ON t.attempt = w.attempt AND t.step = w.step AND t.process = w.process),
    begun AS MATERIALIZED (
        SELECT l.*, l.end_us - l.took * 1e6 AS start_us,
            least(l.end_us, l.end_us - l.took * 0.9999e6 + 1) AS open_us FROM laid AS l),
    marks AS (
        SELECT b.attempt, b.step, b.process, b.id, b.open_us AS at_us,
            CASE WHEN b.open_us < b.end_us THEN 0 ELSE 2 * b.id END AS turn, 1 AS opens FROM begun AS b
        UNION ALL
        SELECT b.attempt, b.step, b.process, b.id, b.end_us, 2 * b.id + 1, -1 FROM begun AS b),
    deep AS (
        SELECT m.id, m.opens, 1 + sum(m.opens) OVER (
            PARTITION BY m.attempt, m.step, m.process ORDER BY m.at_us, m.turn
            ROWS UNBOUNDED PRECEDING)::BIGINT AS depth
        FROM marks AS m),
    stacked AS MATERIALIZED (
        SELECT b.*, d.depth FROM begun AS b JOIN deep AS d ON d.id = b.id AND d.opens = -1),
    nested AS MATERIALIZED (
        SELECT q.id, q.within.id AS parent, q.within.span AS inside, q.took
        FROM (
            SELECT b.id, b.took, b.seeks, b.end_us, last_value(b.candidate IGNORE NULLS) OVER (
                PARTITION BY b.attempt, b.step, b.process, b.level ORDER BY b.at_us, b.seeks, b.id
                ROWS UNBOUNDED PRECEDING) AS within
            FROM (
                SELECT k.attempt, k.step, k.process, k.depth AS level, k.open_us AS at_us, false AS seeks,
                    k.id, k.took, k.end_us,
                    {{'id': k.id, 'span': k.span, 'end_us': k.end_us, 'start_us': k.start_us}} AS candidate
                FROM stacked AS k
                UNION ALL
                SELECT k.attempt, k.step, k.process, k.depth - 1, k.end_us, true, k.id, k.took, k.end_us, NULL
                FROM stacked AS k WHERE k.depth > 1) AS b) AS q
        WHERE q.seeks AND q.end_us < q.within.end_us
          AND q.end_us - q.took * 5e5 >= q.within.start_us),
    held AS (SELECT n.parent, sum(n.took) AS seconds FROM nested AS n GROUP BY n.parent),
    alone AS MATERIALIZED (
        SELECT k.attempt, k.step, k.process, k.span, n.inside,
            greatest(0, k.took - coalesce(h.seconds, 0)) AS own,
            regexp_matches(lower(k.span), '{KINDS["wait"]}') AS waits,
            greatest(0, k.end_us - greatest(k.start_us, coalesce(max(k.end_us) OVER (
                PARTITION BY k.attempt, k.step, k.process ORDER BY k.start_us, k.id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), k.start_us))) / 1e6 AS fresh
        FROM stacked AS k LEFT JOIN held AS h ON h.parent = k.id LEFT JOIN nested AS n ON n.id = k.id),
    shares AS (
        SELECT *, sum(a.fresh) OVER w AS whole, sum(a.own) OVER w AS owned,
            coalesce(sum(a.own) FILTER (a.waits) OVER w, 0) AS waiting
        FROM alone AS a WINDOW w AS (PARTITION BY a.attempt, a.step, a.process)),
    own AS (
        SELECT t.attempt, t.step, t.process, t.span, t.took AS own, NULL::VARCHAR AS inside
        FROM timed AS t ANTI JOIN tangled AS w
          ON t.attempt = w.attempt AND t.step = w.step AND t.process = w.process
        UNION ALL
        SELECT s.attempt, s.step, s.process, s.span, s.own * coalesce(CASE WHEN s.owned <= s.whole THEN 1
                WHEN s.waits THEN greatest(0, s.whole - (s.owned - s.waiting)) / nullif(s.waiting, 0)
                ELSE least(1, s.whole / (s.owned - s.waiting)) END, 0), s.inside
        FROM shares AS s),
    owned AS (
        SELECT o.attempt, o.step, o.process, o.span, sum(o.own) AS self_seconds, min(o.inside) AS inside
        FROM own AS o GROUP BY ALL),
    summed AS (
        SELECT f.attempt, f.step, f.process, any_value(f.rank) AS rank, f.span,
            coalesce(sum(f.took), 0) AS seconds, count(f.took) AS n, count(*) - count(f.took) AS odd,
            max(f.us) AS end_us
        FROM found AS f GROUP BY f.attempt, f.step, f.process, f.span),
    kinds AS (SELECT d.span, span_kind(d.span) AS kind FROM (SELECT DISTINCT f.span FROM summed AS f) AS d)
    SELECT f.attempt, f.step, f.process, f.rank, f.span, k.kind, f.seconds,
        coalesce(o.self_seconds, 0) AS self_seconds, f.n, o.inside, f.odd,
        make_timestamptz(f.end_us) AS ended
    FROM summed AS f JOIN kinds AS k ON k.span = f.span
    LEFT JOIN owned AS o ON o.attempt = f.attempt AND o.step = f.step AND o.process = f.process
      AND o.span = f.span
    """,
    "FROM step_spans('steps') WHERE step = 1 ORDER BY rank, ended",
    "of_run, of_role := 'trainer', all_attempts := false",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("process", "id of the process"),
        ("rank", "its rank"),
        ("span", "name, without `span/`"),
        ("kind", "as `span_kind` says"),
        ("seconds", "of all its repeats in the step"),
        (
            "self_seconds",
            "without the spans nested in it, and each second once: the sum over all spans is what they cover",
        ),
        ("n", "how often it was logged"),
        ("inside", "the span that it is nested in, null for one that is in none"),
        ("odd", "values that are no duration (NaN, infinite, negative): left out"),
        ("ended", "when the last one was logged, by the clock of its host"),
    ),
)

_RANK_STEPS = View(
    "rank_steps",
    "one step of one process; `busy + waiting + rest + barrier = step_seconds`, the same on all ranks "
    "of the step",
    f"""
    TABLE
    WITH summed AS (
        SELECT t.attempt, t.step, t.process, any_value(t.rank) AS rank,
            coalesce(sum(t.self_seconds) FILTER (t.kind NOT IN ('wait', 'total')), 0) AS busy_seconds,
            coalesce(sum(t.self_seconds) FILTER (t.kind = 'wait'), 0) AS waiting_seconds,
            sum(t.seconds) FILTER (t.kind = 'total' AND t.n > 0) AS whole,
            coalesce(sum(t.self_seconds) FILTER (t.kind = 'total'), 0) AS whole_self,
            epoch_us(max(t.ended)) AS ended_us, sum(t.odd) AS odd
        FROM step_spans(of_run, of_role := of_role, all_attempts := all_attempts) AS t GROUP BY ALL),
    told AS (
        SELECT s.attempt, s.step, s.process, any_value(s.rank) AS rank, avg(s.value) AS took,
            epoch_us(max(s.time)) AS ended_us
        FROM sample_attempts AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.metric = 'step_time' AND s.step IS NOT NULL
          AND s.value BETWEEN 0 AND {LONGEST:.0e} GROUP BY ALL),
    whole_steps AS (
        SELECT coalesce(m.attempt, w.attempt) AS attempt, coalesce(m.step, w.step) AS step,
            coalesce(m.process, w.process) AS process, coalesce(m.rank, w.rank) AS rank, m.whole,
            m.whole_self, w.took, coalesce(m.ended_us, w.ended_us) AS ended_us, coalesce(m.odd, 0) AS odd,
            m.step IS NULL AS alone, coalesce(m.busy_seconds, w.took) AS busy_seconds,
            coalesce(m.waiting_seconds, 0) AS waiting_seconds
        FROM summed AS m FULL JOIN told AS w
          ON m.attempt = w.attempt AND m.step = w.step AND m.process = w.process),
    newest AS (
        FROM whole_steps AS w
        QUALIFY all_attempts OR w.attempt = max(w.attempt) OVER (PARTITION BY w.step)),
    sized AS (
        SELECT *, w.busy_seconds + w.waiting_seconds AS covered,
            CASE WHEN w.step - lag(w.step) OVER p = 1 AND w.ended_us > lag(w.ended_us) OVER p
                THEN (w.ended_us - lag(w.ended_us) OVER p) / 1e6 END AS clock
        FROM newest AS w WINDOW p AS (PARTITION BY w.attempt, w.process ORDER BY w.step)),
    own AS (
        SELECT *, greatest(z.covered, CASE WHEN z.whole_self < z.whole THEN z.covered + z.whole_self
                ELSE coalesce(z.whole, z.took, z.clock, 0) END) AS seconds,
            CASE WHEN z.alone THEN 'no spans' WHEN z.whole IS NOT NULL THEN 'span'
                WHEN z.took IS NOT NULL THEN 'step_time'
                WHEN z.clock > z.covered THEN 'clock' ELSE 'spans' END AS seconds_from
        FROM sized AS z)
    SELECT o.attempt, o.step, o.rank, o.process, o.seconds, o.seconds_from, o.busy_seconds, o.waiting_seconds,
        o.seconds - o.covered AS rest_seconds,
        max(o.seconds) OVER s - o.seconds AS barrier_seconds, max(o.seconds) OVER s AS step_seconds, o.odd
    FROM own AS o WINDOW s AS (PARTITION BY o.attempt, o.step)
    """,
    "FROM rank_steps('steps') WHERE step < 2 ORDER BY step, rank",
    "of_run, of_role := 'trainer', all_attempts := false",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("rank", "its rank"),
        ("process", "id of the process"),
        ("seconds", "the step on this process"),
        (
            "seconds_from",
            "where they are from: `span` (named step), `step_time` (the metric), `clock` (since its step "
            "before), `spans` (their sum), `no spans` (step_time is all there is)",
        ),
        ("busy_seconds", "in spans that do not wait for other ranks"),
        ("waiting_seconds", "in spans that do"),
        ("rest_seconds", "in no span"),
        ("barrier_seconds", "from its end to the end of the slowest rank"),
        ("step_seconds", "of the slowest rank"),
        ("odd", "values that are no duration"),
    ),
)

VIEWS = (
    _SPAN_KIND,
    _STEP_SPANS,
    _RANK_STEPS,
)
