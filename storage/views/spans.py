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

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.metric_names import SPAN_PREFIX
from driftline.storage.views.curves import PLACE
from driftline.storage.views.view import View

STAND_INS = (
    "data_loading_time",
    "forward_time",
    "backward_time",
    "gradient_update_time",
    "communication_time",
)

LOOKED = 400
"""Steps, evenly spread, that are looked at to find a wait inside of a span."""
STEPS_MIN = 20
"""Steps with several ranks that it takes to find one."""
FIT_MIN = 0.4
"""Part of a span's variation between ranks that their other work explains, if the span waits for them."""
LONGEST = 1e9
"""Seconds; what is longer is no duration."""
_AFTER_PREFIX = SPAN_PREFIX[:-1] + chr(ord(SPAN_PREFIX[-1]) + 1)
_PLACE = PLACE.replace('"offset"', "f.at").replace("ordinal", "f.ordinal")
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
    spoken AS MATERIALIZED (
        SELECT s.attempt, s.step, s.process, s.rank, starts_with(s.metric, '{SPAN_PREFIX}') AS is_span,
            CASE WHEN starts_with(s.metric, '{SPAN_PREFIX}') THEN substr(s.metric, {len(SPAN_PREFIX) + 1})
                ELSE s.metric END AS span,
            CASE WHEN s.value BETWEEN 0 AND {LONGEST:.0e} THEN s.value END AS took,
            epoch_us(s.time) AS us, s."offset" AS at, s.ordinal
        FROM sample_attempts AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.step IS NOT NULL
          AND (s.metric >= '{SPAN_PREFIX}' AND s.metric < '{_AFTER_PREFIX}' OR s.metric IN ({_NAMES}))
          AND s.process NOT IN (SELECT o.process FROM strangers AS o)),
    newest AS (
        SELECT p.step, max(p.attempt) AS attempt FROM spoken AS p
        WHERE p.is_span = (SELECT bool_or(q.is_span) FROM spoken AS q) GROUP BY p.step),
    found AS MATERIALIZED (
        SELECT p.* FROM spoken AS p JOIN newest AS n ON n.step = p.step
        WHERE p.is_span = (SELECT bool_or(q.is_span) FROM spoken AS q)
          AND (all_attempts OR p.attempt = n.attempt)),
    moments AS (
        SELECT f.attempt, f.step, f.process, f.us, arg_min(f.took, {_PLACE}) AS took
        FROM found AS f WHERE f.took IS NOT NULL GROUP BY ALL),
    tangled AS MATERIALIZED (
        SELECT DISTINCT o.attempt, o.step, o.process FROM (
            SELECT m.*, lag(m.us) OVER (PARTITION BY m.attempt, m.step, m.process ORDER BY m.us) AS before
            FROM moments AS m) AS o
        WHERE o.before > o.us - o.took * 0.999e6 + 2),
    laid AS MATERIALIZED (
        SELECT t.attempt, t.step, t.process, t.span, t.took,
            row_number() OVER (ORDER BY t.us, t.at, t.ordinal) AS id,
            t.us - 1e6 * coalesce(sum(t.took) OVER (
                PARTITION BY t.attempt, t.step, t.process, t.us ORDER BY t.at DESC, t.ordinal DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS end_us
        FROM found AS t SEMI JOIN tangled AS w
          ON t.attempt = w.attempt AND t.step = w.step AND t.process = w.process
        WHERE t.took IS NOT NULL),
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
        SELECT s.attempt, s.step, s.process, s.span, s.inside,
            s.own * coalesce(CASE WHEN s.owned <= s.whole THEN 1
                WHEN s.waits THEN greatest(0, s.whole - (s.owned - s.waiting)) / nullif(s.waiting, 0)
                ELSE least(1, s.whole / (s.owned - s.waiting)) END, 0) AS own
        FROM shares AS s),
    owned AS (
        SELECT o.attempt, o.step, o.process, o.span, sum(o.own) AS self_seconds, min(o.inside) AS inside
        FROM own AS o GROUP BY ALL),
    summed AS (
        SELECT f.attempt, f.step, f.process, any_value(f.rank) AS rank, f.span,
            coalesce(sum(f.took), 0) AS seconds, count(f.took) AS n, count(*) - count(f.took) AS odd,
            max(f.us) AS end_us
        FROM found AS f GROUP BY f.attempt, f.step, f.process, f.span),
    parts AS MATERIALIZED (
        SELECT f.*, k.kind, CASE WHEN w.step IS NULL THEN f.seconds ELSE coalesce(o.self_seconds, 0) END AS self_seconds,
            o.inside
        FROM summed AS f LEFT JOIN tangled AS w
          ON w.attempt = f.attempt AND w.step = f.step AND w.process = f.process
        LEFT JOIN owned AS o ON o.attempt = f.attempt AND o.step = f.step AND o.process = f.process
          AND o.span = f.span
        JOIN (SELECT d.span, span_kind(d.span) AS kind FROM (SELECT DISTINCT f.span FROM found AS f) AS d) AS k
          ON k.span = f.span),
    looked AS (
        SELECT n.step FROM newest AS n
        QUALIFY (row_number() OVER (ORDER BY n.step) - 1) % greatest(1, count(*) OVER () // {LOOKED}) = 0),
    busy AS (
        SELECT p.attempt, p.step, p.process, sum(p.self_seconds) AS seconds, max(p.end_us) AS end_us
        FROM parts AS p SEMI JOIN looked AS l ON l.step = p.step WHERE p.kind NOT IN ('wait', 'total')
        GROUP BY ALL),
    against AS (
        SELECT p.span, p.attempt, p.step, count(*) AS ranks, avg(p.end_us - b.end_us) AS early,
            count(*) * covar_pop(p.self_seconds, b.seconds - p.self_seconds) AS shared,
            count(*) * var_pop(b.seconds - p.self_seconds) AS others,
            count(*) * var_pop(p.self_seconds) AS own
        FROM parts AS p JOIN busy AS b
          ON b.attempt = p.attempt AND b.step = p.step AND b.process = p.process
        WHERE p.kind NOT IN ('wait', 'total') GROUP BY p.span, p.attempt, p.step),
    hidden AS (
        SELECT g.span FROM (
            SELECT a.span, count(*) FILTER (a.ranks > 1) AS steps, avg(a.early) AS early,
                sum(a.shared) / nullif(sum(a.others), 0) AS slope,
                sum(a.shared) ** 2 / nullif(sum(a.others) * sum(a.own), 0) AS fit
            FROM against AS a GROUP BY a.span) AS g
        WHERE g.steps >= {STEPS_MIN} AND g.slope BETWEEN -1.25 AND -0.75 AND g.fit >= {FIT_MIN}
        ORDER BY g.early DESC, abs(g.slope + 1), g.span LIMIT 1),
    least_waiting AS (
        SELECT p.attempt, p.step, p.span, min(p.self_seconds) AS seconds
        FROM parts AS p SEMI JOIN hidden AS h ON h.span = p.span WHERE p.n > 0 GROUP BY ALL)
    SELECT f.attempt, f.step, f.process, f.rank, f.span, f.kind, f.seconds, f.self_seconds,
        CASE WHEN f.kind = 'wait' THEN f.self_seconds
            ELSE coalesce(greatest(0, f.self_seconds - l.seconds), 0) END AS waiting_seconds,
        f.n, f.inside, f.odd, make_timestamptz(f.end_us) AS ended
    FROM parts AS f LEFT JOIN least_waiting AS l
      ON l.attempt = f.attempt AND l.step = f.step AND l.span = f.span
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
        (
            "waiting_seconds",
            "of these, waiting for other ranks: all of a span of kind wait; of one span of another kind what it "
            "takes beyond the rank that is shortest in it, where ranks that come late are short in it",
        ),
        ("n", "how often it was logged"),
        ("inside", "the span that it is nested in, null for one that is in none"),
        ("odd", "values that are no duration (NaN, infinite, negative): left out"),
        ("ended", "when the last one was logged, by the clock of its host"),
    ),
)

_STEP_PARTS = View(
    "step_parts",
    "one span of one step of one process, and one row of kind `(step)` for the step itself: what `step_spans` "
    "and `rank_steps` say, in one pass",
    f"""
    TABLE
    WITH t AS MATERIALIZED (
        FROM step_spans(of_run, of_role := of_role, all_attempts := all_attempts)),
    summed AS (
        SELECT t.attempt, t.step, t.process, any_value(t.rank) AS rank,
            coalesce(sum(t.self_seconds - t.waiting_seconds) FILTER (t.kind <> 'total'), 0) AS busy_seconds,
            coalesce(sum(t.waiting_seconds), 0) AS waiting_seconds,
            sum(t.seconds) FILTER (t.kind = 'total' AND t.n > 0) AS whole,
            coalesce(sum(t.self_seconds) FILTER (t.kind = 'total'), 0) AS whole_self,
            epoch_us(max(t.ended)) AS ended_us, sum(t.odd) AS odd
        FROM t GROUP BY ALL),
    told AS (
        SELECT s.attempt, s.step, s.process, any_value(s.rank) AS rank, avg(s.value) AS took,
            epoch_us(max(s.time)) AS ended_us
        FROM sample_attempts AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.metric = 'step_time' AND s.step IS NOT NULL
          AND s.value BETWEEN 0 AND {LONGEST:.0e} GROUP BY ALL),
    whole_steps AS MATERIALIZED (
        SELECT coalesce(m.attempt, w.attempt) AS attempt, coalesce(m.step, w.step) AS step,
            coalesce(m.process, w.process) AS process, coalesce(m.rank, w.rank) AS rank, m.whole,
            m.whole_self, w.took, coalesce(m.ended_us, w.ended_us) AS ended_us, coalesce(m.odd, 0) AS odd,
            m.step IS NULL AS alone, coalesce(m.busy_seconds, w.took) AS busy_seconds,
            coalesce(m.waiting_seconds, 0) AS waiting_seconds
        FROM summed AS m FULL JOIN told AS w
          ON m.attempt = w.attempt AND m.step = w.step AND m.process = w.process),
    newest AS (SELECT w.step, max(w.attempt) AS attempt FROM whole_steps AS w GROUP BY w.step),
    sized AS (
        SELECT w.*, w.busy_seconds + w.waiting_seconds AS covered,
            CASE WHEN w.step - lag(w.step) OVER p = 1 AND w.ended_us > lag(w.ended_us) OVER p
                THEN (w.ended_us - lag(w.ended_us) OVER p) / 1e6 END AS clock
        FROM whole_steps AS w JOIN newest AS n ON n.step = w.step
        WHERE all_attempts OR w.attempt = n.attempt
        WINDOW p AS (PARTITION BY w.attempt, w.process ORDER BY w.step)),
    own AS (
        SELECT z.*, greatest(z.covered, CASE WHEN z.whole_self < z.whole THEN z.covered + z.whole_self
                ELSE coalesce(z.whole, z.took, z.clock, 0) END) AS seconds,
            CASE WHEN z.alone THEN 'no spans' WHEN z.whole IS NOT NULL THEN 'span'
                WHEN z.took IS NOT NULL THEN 'step_time'
                WHEN z.clock > z.covered THEN 'clock' ELSE 'spans' END AS seconds_from
        FROM sized AS z),
    roomy AS MATERIALIZED (
        SELECT o.*, CASE WHEN lead(o.step) OVER p IS NOT NULL  -- greatest leaves nulls out
                THEN greatest(0, (lead(o.ended_us) OVER p - o.ended_us) / 1e6 - lead(o.seconds) OVER p)
                WHEN o.seconds_from = 'clock' THEN 0 ELSE {LONGEST:.0e} END AS room
        FROM own AS o WINDOW p AS (PARTITION BY o.attempt, o.process ORDER BY o.step)),
    longest AS (
        SELECT r.attempt, r.step, max(r.seconds) AS seconds FROM roomy AS r GROUP BY ALL),
    closed AS MATERIALIZED (
        SELECT r.*, least(l.seconds - r.seconds, r.room) AS barrier
        FROM roomy AS r JOIN longest AS l ON l.attempt = r.attempt AND l.step = r.step),
    lasted AS (
        SELECT c.attempt, c.step, avg(c.seconds + c.barrier) AS seconds FROM closed AS c GROUP BY ALL)
    SELECT c.attempt, c.step, c.process, c.rank, NULL::VARCHAR AS span, '(step)' AS kind, c.seconds,
        NULL::DOUBLE AS self_seconds, c.waiting_seconds, 1 AS n, NULL::VARCHAR AS inside, c.odd,
        make_timestamptz(c.ended_us) AS ended, c.seconds_from, c.busy_seconds,
        c.seconds - c.covered AS rest_seconds, c.barrier AS barrier_seconds, l.seconds AS step_seconds,
        coalesce(greatest(0, c.covered - c.clock), 0) AS overlap_seconds
    FROM closed AS c JOIN lasted AS l ON l.attempt = c.attempt AND l.step = c.step
    UNION ALL BY NAME FROM t
    """,
    "FROM step_parts('steps') WHERE step = 1 AND rank = 0 ORDER BY ended",
    "of_run, of_role := 'trainer', all_attempts := false",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("process", "id of the process"),
        ("rank", "its rank"),
        ("span", "as in `step_spans`; null for the step itself"),
        ("kind", "as in `step_spans`; `(step)` for the step itself"),
        ("seconds", "of the span, or of the step on this process"),
        ("self_seconds", "as in `step_spans`"),
        ("waiting_seconds", "as in `step_spans`, or the sum of it over the step"),
        ("n", "as in `step_spans`"),
        ("inside", "as in `step_spans`"),
        ("odd", "values that are no duration"),
        ("ended", "when the last sample of it was logged, by the clock of its host"),
        ("seconds_from", "this and the rest: as in `rank_steps`, null for spans"),
        ("busy_seconds", "as in `rank_steps`"),
        ("rest_seconds", "as in `rank_steps`"),
        ("barrier_seconds", "as in `rank_steps`"),
        ("step_seconds", "as in `rank_steps`"),
        ("overlap_seconds", "as in `rank_steps`"),
    ),
)

_RANK_STEPS = View(
    "rank_steps",
    "one step of one process; the means over the ranks of `busy + waiting + rest + barrier` are `step_seconds`",
    """
    TABLE
    SELECT p.attempt, p.step, p.rank, p.process, p.seconds, p.seconds_from, p.busy_seconds, p.waiting_seconds,
        p.rest_seconds, p.barrier_seconds, p.step_seconds, p.overlap_seconds, p.odd
    FROM step_parts(of_run, of_role := of_role, all_attempts := all_attempts) AS p WHERE p.kind = '(step)'
    """,
    "FROM rank_steps('steps') WHERE step < 2 ORDER BY step, rank",
    "of_run, of_role := 'trainer', all_attempts := false",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("rank", "its rank"),
        ("process", "id of the process"),
        ("seconds", "the step on this process: `busy + waiting + rest`"),
        (
            "seconds_from",
            "where they are from: `span` (named step), `step_time` (the metric), `clock` (since its step "
            "before), `spans` (their sum), `no spans` (step_time is all there is)",
        ),
        ("busy_seconds", "in spans, without waiting for other ranks"),
        ("waiting_seconds", "`waiting_seconds` of its spans"),
        ("rest_seconds", "in no span"),
        (
            "barrier_seconds",
            "from its end until as long as the slowest rank took, at most until its own next step began",
        ),
        ("step_seconds", "the step: mean over its ranks of seconds and barrier"),
        ("overlap_seconds", "of its seconds, before its step before had ended: they are in both"),
        ("odd", "values that are no duration"),
    ),
)

VIEWS = (
    _SPAN_KIND,
    _STEP_SPANS,
    _STEP_PARTS,
    _RANK_STEPS,
)
