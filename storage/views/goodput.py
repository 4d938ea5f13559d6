"""Where the wall time of a run went: a ledger whose seconds add up to it, to the microsecond.

Each attempt is told by one process, its *lead*: the lowest rank that logged steps, by its own clock, so
that skew between hosts moves nothing inside an attempt. A step ends with the last sample of the lead that
names it, in the order of the log; samples that speak of an older step than the newest so far move nothing.
A mark that stands alone (a clock that jumped for a moment) gives way to the median of itself and its
neighbours, and time never runs backward. Attempts are laid end to end with the gaps between them; a gap
that the clocks of two hosts make negative is none.

Each microsecond is in one row, by this order of precedence:

1. ``downtime``: from the end of an attempt (its lead's end event, else its last sample of a step) to the
   start of the next.
2. ``start-up``: from the start of the lead to the beginning of its first step (its end less what its spans
   took); all of an attempt without steps.
3. ``redone``: steps that a later attempt began again at or before, and what an attempt that did not finish
   did after its last step.
4. ``evaluation``, ``checkpoint``, ``data``: what spans of these kinds (``span_kind``) took on the critical
   rank of the step, the rank that was longest in spans that do not wait.
5. ``straggler``: how much longer the work of that rank took than that of the median rank.
6. ``unknown``: what a step took beyond five times the median step of its attempt and no span tells of; what
   came after the last step.
7. ``productive``: the rest of the steps.
"""

from __future__ import annotations

from driftline.storage.views.view import View

CATEGORIES = {
    "productive": "steps whose work was kept",
    "redone": "steps that a later attempt did again, and unfinished ones",
    "downtime": "between attempts",
    "start-up": "before the first step of an attempt",
    "evaluation": "evaluation inside the training loop",
    "checkpoint": "saving checkpoints inside the training loop",
    "data": "waiting for data",
    "straggler": "the median rank waited for the slowest",
    "unknown": "neither a step nor a span tells what it was",
}
_ORDER = ", ".join(f"('{name}', '{says}', {at})" for at, (name, says) in enumerate(CATEGORIES.items()))

_RUN_STRETCHES = View(
    "run_stretches",
    "one attempt of a run as its lead tells it, by its own clock: the lowest rank that logged steps and was "
    "there all the time",
    """
    TABLE
    WITH strangers AS (
        SELECT p.process FROM process_events AS p
        WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'started'
          AND (p.parent IS NOT NULL OR p.role <> of_role)),
    stepped AS (
        SELECT s.process, min(s.rank) AS rank FROM samples AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.step IS NOT NULL GROUP BY s.process),
    events AS (
        SELECT p.process, epoch_us(min(p.time) FILTER (p.event = 'started')) AS started_us,
            epoch_us(max(p.time) FILTER (p.event = 'ended')) AS ended_us, min(p.rank) AS rank,
            max_by(p.outcome, p.time) FILTER (p.event = 'ended') AS outcome
        FROM process_events AS p WHERE p.run = (SELECT run_id(of_run)) GROUP BY p.process),
    joined AS (
        SELECT a.process, a.topic_uuid, a.attempt, a.from_offset FROM attempts AS a
        WHERE a.run = (SELECT run_id(of_run))),
    rewound AS (
        SELECT p.process, p.topic_uuid, p."offset" AS at, epoch_us(p.time) AS us FROM process_events AS p
        WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'rewound'),
    known AS (
        SELECT coalesce(j.process, e.process, s.process) AS process, coalesce(j.attempt, 0) AS attempt,
            coalesce(e.rank, s.rank) AS rank, s.process IS NOT NULL AS stepped, j.from_offset, j.topic_uuid,
            e.started_us, e.ended_us, e.outcome
        FROM joined AS j FULL JOIN events AS e ON e.process = j.process
        FULL JOIN stepped AS s ON s.process = coalesce(j.process, e.process)),
    seated AS (
        SELECT k.*, count(*) OVER (PARTITION BY k.attempt, k.rank) > 1 AS taken_over
        FROM known AS k WHERE k.process NOT IN (SELECT o.process FROM strangers AS o)),
    led AS (
        SELECT k.*, lead(k.attempt) OVER (PARTITION BY k.process ORDER BY k.attempt) IS NOT NULL AS goes_on
        FROM seated AS k QUALIFY row_number() OVER (
            PARTITION BY k.attempt ORDER BY k.stepped DESC, k.taken_over, k.rank NULLS LAST, k.process) = 1),
    ends AS (
        SELECT s.attempt, arg_min(epoch_us(s.time), (s."offset", s.ordinal)) AS first_us,
            arg_max(epoch_us(s.time), (s."offset", s.ordinal)) AS last_us
        FROM sample_attempts AS s JOIN led AS l ON l.process = s.process AND l.attempt = s.attempt
        WHERE s.run = (SELECT run_id(of_run)) GROUP BY s.attempt),
    timed AS (
        SELECT l.attempt, l.process, l.rank, l.outcome, l.goes_on,
            coalesce(w.us, l.started_us, n.first_us) AS began_us,
            CASE WHEN NOT l.goes_on THEN l.ended_us END AS ended_us, n.last_us
        FROM led AS l LEFT JOIN ends AS n ON n.attempt = l.attempt
        LEFT JOIN rewound AS w ON w.process = l.process AND w.topic_uuid = l.topic_uuid
          AND w.at = l.from_offset)
    SELECT t.attempt, t.process, t.rank, t.began_us,
        greatest(t.began_us, coalesce(t.ended_us,
            CASE WHEN t.goes_on THEN lead(t.began_us) OVER (ORDER BY t.attempt) END, t.last_us, t.began_us))
            AS ended_us,
        CASE WHEN t.goes_on THEN 'rewound' WHEN t.ended_us IS NOT NULL THEN t.outcome END AS outcome
    FROM timed AS t WHERE t.began_us IS NOT NULL ORDER BY t.attempt
    """,
    "FROM run_stretches('steps')",
    "of_run, of_role := 'trainer'",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("process", "its lead"),
        ("rank", "of the lead"),
        ("began_us", "when the lead started or rewound, in microseconds since 1970"),
        ("ended_us", "when it ended, else its last sample"),
        ("outcome", "as the lead said: finished, exception, signal, or rewound; null if it did not say"),
    ),
)

_LEAD_STEPS = View(
    "lead_steps",
    "one step of one attempt: when it ended on the clock of the lead",
    """
    TABLE
    WITH led AS MATERIALIZED (FROM run_stretches(of_run, of_role := of_role)),
    marks AS (
        SELECT s.attempt, s.step, s."offset" AS at, s.ordinal, epoch_us(s.time) AS us,
            starts_with(s.metric, 'checkpoint_') AS saves,
            max(s.step) OVER (PARTITION BY s.attempt ORDER BY s."offset", s.ordinal
                              ROWS UNBOUNDED PRECEDING) AS newest
        FROM sample_attempts AS s JOIN led AS l ON l.process = s.process AND l.attempt = s.attempt
        WHERE s.run = (SELECT run_id(of_run)) AND s.step IS NOT NULL),
    ends AS (
        SELECT m.attempt, m.step, arg_max(m.us, (m.at, m.ordinal)) AS us FROM marks AS m
        WHERE m.step = m.newest GROUP BY m.attempt, m.step
        HAVING NOT bool_and(m.saves)),  -- a checkpoint of untrained weights is no step
    calm AS (
        SELECT e.attempt, e.step,
            CASE WHEN lag(e.us, 2) OVER w IS NOT NULL AND lead(e.us, 2) OVER w IS NOT NULL
                THEN list_sort([lag(e.us, 2) OVER w, lag(e.us) OVER w, e.us, lead(e.us) OVER w,
                                lead(e.us, 2) OVER w])[3]
                WHEN lag(e.us) OVER w IS NOT NULL AND lead(e.us) OVER w IS NOT NULL
                THEN list_sort([lag(e.us) OVER w, e.us, lead(e.us) OVER w])[2] ELSE e.us END AS us
        FROM ends AS e WINDOW w AS (PARTITION BY e.attempt ORDER BY e.step)),
    forward AS (
        SELECT c.attempt, c.step, l.process, l.began_us,
            greatest(l.began_us, max(c.us) OVER (PARTITION BY c.attempt ORDER BY c.step)) AS us,
            min(c.step) OVER (PARTITION BY c.attempt) AS first_step
        FROM calm AS c JOIN led AS l ON l.attempt = c.attempt)
    SELECT f.attempt, f.step, f.process, make_timestamptz(f.us) AS ended, f.began_us, f.first_step
    FROM forward AS f ORDER BY f.attempt, f.step
    """,
    "FROM lead_steps('steps')",
    "of_run, of_role := 'trainer'",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("process", "the lead, which tells it"),
        ("ended", "last sample of the step, by the clock of the lead"),
        ("began_us", "when the attempt began, in microseconds since 1970"),
        ("first_step", "of the attempt"),
    ),
)

_STEP_TIMES = View(
    "step_times",
    "one step of one attempt on the clock of the lead, and what its time went to; microseconds add up to the "
    "step",
    """
    TABLE
    WITH forward AS MATERIALIZED (
        SELECT l.*, epoch_us(l.ended) AS us FROM lead_steps(of_run, of_role := of_role) AS l),
    kinds AS (
        SELECT t.attempt, t.step, t.process, any_value(t.rank) AS rank,
            coalesce(sum(t.self_seconds) FILTER (t.kind = 'evaluation'), 0) AS evaluation,
            coalesce(sum(t.self_seconds) FILTER (t.kind = 'checkpoint'), 0) AS checkpoint,
            coalesce(sum(t.self_seconds) FILTER (t.kind = 'data'), 0) AS data,
            coalesce(sum(t.self_seconds - t.waiting_seconds) FILTER (t.kind = 'work'), 0) AS work,
            sum(t.self_seconds) AS covered
        FROM step_spans(of_run, of_role := of_role, all_attempts := true) AS t GROUP BY ALL),
    paths AS (
        SELECT k.*, median(k.work) OVER (PARTITION BY k.attempt, k.step) AS median_work,
            max(k.covered) OVER (PARTITION BY k.attempt, k.step) AS told FROM kinds AS k
        QUALIFY row_number() OVER (
            PARTITION BY k.attempt, k.step
            ORDER BY k.evaluation + k.checkpoint + k.data + k.work DESC, k.rank, k.process) = 1),
    lasted AS (
        SELECT f.attempt, f.step, f.first_step, f.us - coalesce(
                lag(f.us) OVER (PARTITION BY f.attempt ORDER BY f.step),
                greatest(f.began_us, f.us - coalesce(round(o.covered * 1e6), 0)::BIGINT)) AS took_us, f.us
        FROM forward AS f LEFT JOIN kinds AS o
          ON o.attempt = f.attempt AND o.step = f.step AND o.process = f.process),
    resumed AS (
        SELECT r.attempt, min(r.first_step) OVER (
            ORDER BY r.attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS again
        FROM (SELECT DISTINCT t.attempt, t.first_step FROM lasted AS t) AS r),
    spent AS (
        SELECT t.attempt, t.step, t.us, t.took_us, coalesce(t.step < r.again, true) AS kept,
            least(t.took_us, round(coalesce(p.evaluation, 0) * 1e6)::BIGINT) AS evaluation_us,
            round(coalesce(p.checkpoint, 0) * 1e6)::BIGINT AS checkpoint_wish,
            round(coalesce(p.data, 0) * 1e6)::BIGINT AS data_wish,
            round(greatest(0, coalesce(p.work - p.median_work, 0)) * 1e6)::BIGINT AS straggler_wish,
            round(coalesce(p.told, 0) * 1e6)::BIGINT AS told_us,
            round(5 * median(t.took_us) OVER (PARTITION BY t.attempt))::BIGINT AS long_us
        FROM lasted AS t JOIN resumed AS r ON r.attempt = t.attempt
        LEFT JOIN paths AS p ON p.attempt = t.attempt AND p.step = t.step),
    saved AS (
        SELECT s.*, least(s.took_us - s.evaluation_us, s.checkpoint_wish) AS checkpoint_us FROM spent AS s),
    fed AS (
        SELECT s.*, least(s.took_us - s.evaluation_us - s.checkpoint_us, s.data_wish) AS data_us
        FROM saved AS s),
    slowed AS (
        SELECT f.*, least(f.took_us - f.evaluation_us - f.checkpoint_us - f.data_us, f.straggler_wish)
            AS straggler_us FROM fed AS f),
    rested AS (
        SELECT z.*, greatest(0, least(
                z.took_us - z.evaluation_us - z.checkpoint_us - z.data_us - z.straggler_us,
                z.took_us - greatest(z.long_us, z.told_us))) AS unknown_us
        FROM slowed AS z)
    SELECT z.attempt, z.step, make_timestamptz(z.us) AS ended, z.took_us, z.kept, z.evaluation_us,
        z.checkpoint_us, z.data_us, z.straggler_us, z.unknown_us,
        z.took_us - z.evaluation_us - z.checkpoint_us - z.data_us - z.straggler_us - z.unknown_us
            AS productive_us
    FROM rested AS z ORDER BY z.attempt, z.step
    """,
    "FROM step_times('steps') WHERE attempt = 0",
    "of_run, of_role := 'trainer'",
    columns=(
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("ended", "last sample of the step, by the clock of the lead"),
        ("took_us", "since the end of the step before"),
        ("kept", "no later attempt did it again"),
        ("evaluation_us", "in evaluation spans of the critical rank"),
        ("checkpoint_us", "in checkpoint spans of that rank"),
        ("data_us", "in data spans of that rank"),
        ("straggler_us", "work of that rank beyond the work of the median rank"),
        ("unknown_us", "beyond five times the median step and in no span"),
        ("productive_us", "the rest"),
    ),
)

_BOOKED = """WITH led AS MATERIALIZED (FROM run_stretches(of_run, of_role := of_role)),
    s AS MATERIALIZED (FROM step_times(of_run, of_role := of_role)),
    stepped AS (
        SELECT s.attempt, sum(s.took_us)::BIGINT AS took_us, max(epoch_us(s.ended)) AS last_us FROM s
        GROUP BY s.attempt),
    laid AS (
        SELECT l.attempt, l.outcome, t.attempt IS NOT NULL AS stepped,
            greatest(l.ended_us, coalesce(t.last_us, l.ended_us)) AS ended_us, l.began_us, t.last_us,
            coalesce(t.took_us, 0) AS took_us, lead(l.began_us) OVER (ORDER BY l.attempt) AS next_us
        FROM led AS l LEFT JOIN stepped AS t ON t.attempt = l.attempt),
    entries AS (
        SELECT 'productive' AS category, s.productive_us AS us FROM s WHERE s.kept
        UNION ALL SELECT 'evaluation', s.evaluation_us FROM s WHERE s.kept
        UNION ALL SELECT 'checkpoint', s.checkpoint_us FROM s WHERE s.kept
        UNION ALL SELECT 'data', s.data_us FROM s WHERE s.kept
        UNION ALL SELECT 'straggler', s.straggler_us FROM s WHERE s.kept
        UNION ALL SELECT 'unknown', s.unknown_us FROM s WHERE s.kept
        UNION ALL SELECT 'redone', s.took_us FROM s WHERE NOT s.kept
        UNION ALL SELECT 'start-up',
            CASE WHEN l.stepped THEN l.last_us - l.took_us ELSE l.ended_us END - l.began_us FROM laid AS l
        UNION ALL SELECT CASE WHEN l.next_us IS NOT NULL AND coalesce(l.outcome, '') <> 'finished'
                THEN 'redone' ELSE 'unknown' END, l.ended_us - l.last_us FROM laid AS l WHERE l.stepped
        UNION ALL SELECT 'downtime', greatest(0, l.next_us - l.ended_us) FROM laid AS l
        WHERE l.next_us IS NOT NULL),
    summed AS (
        SELECT e.category, sum(e.us)::BIGINT AS us, count(*) FILTER (e.us > 0) AS n FROM entries AS e
        GROUP BY e.category)"""

_LEDGER = View(
    "goodput_ledger",
    "one use of the wall time of a run; `seconds` add up to the wall time and `share` to 1",
    f"""
    TABLE
{_BOOKED}
    SELECT c.category, coalesce(m.us, 0) / 1e6 AS seconds,
        coalesce(m.us, 0) / nullif(sum(m.us) OVER (), 0) AS share, coalesce(m.n, 0) AS n, c.says
    FROM (VALUES {_ORDER}) AS c(category, says, place) LEFT JOIN summed AS m ON m.category = c.category
    WHERE EXISTS (FROM led) ORDER BY c.place
    """,
    "FROM goodput_ledger('steps')",
    "of_run, of_role := 'trainer'",
    columns=(
        ("category", ", ".join(CATEGORIES)),
        ("seconds", "of wall time, on the clocks of the leads"),
        ("share", "of the wall time"),
        ("n", "steps, restarts or attempts that have some of it"),
        ("says", "what it is"),
    ),
)

_GOODPUT = View(
    "goodput",
    "one run: the share of its wall time that advanced training",
    f"""
    TABLE
{_BOOKED},
    l AS (SELECT m.category, m.us / 1e6 AS seconds FROM summed AS m),
    a AS (SELECT count(*) AS attempts, min(t.began_us) AS began_us, arg_max(t.ended_us, t.attempt) AS ended_us
          FROM led AS t)
    SELECT (SELECT run_id(of_run)) AS run, make_timestamptz(any_value(a.began_us)) AS started,
        make_timestamptz(any_value(a.ended_us)) AS last_seen, sum(l.seconds) AS wall_seconds,
        sum(l.seconds) FILTER (l.category = 'productive') AS productive_seconds,
        sum(l.seconds) FILTER (l.category = 'productive') / nullif(sum(l.seconds), 0) AS goodput,
        any_value(a.attempts) AS attempts, (SELECT count(*) FROM s WHERE s.kept) AS steps,
        (SELECT count(*) FROM s WHERE NOT s.kept) AS steps_redone,
        (SELECT median(s.took_us) / 1e6 FROM s WHERE s.kept) AS median_step_seconds,
        arg_max(l.category, l.seconds) FILTER (l.category <> 'productive' AND l.seconds > 0) AS largest_loss,
        max(l.seconds) FILTER (l.category <> 'productive' AND l.seconds > 0) AS largest_loss_seconds
    FROM l CROSS JOIN a HAVING count(*) > 0
    """,
    "FROM goodput('steps')",
    "of_run, of_role := 'trainer'",
    columns=(
        ("run", "id of the run"),
        ("started", "start of its first lead, by the clock of its host"),
        ("last_seen", "end of its newest lead, or its last sample"),
        ("wall_seconds", "all attempts and the gaps between them"),
        ("productive_seconds", "as in `goodput_ledger`"),
        ("goodput", "productive over wall"),
        ("attempts", "restarts and 1"),
        ("steps", "steps whose work was kept"),
        ("steps_redone", "steps that a later attempt did again"),
        ("median_step_seconds", "of the steps that were kept"),
        ("largest_loss", "category that cost most, other than productive"),
        ("largest_loss_seconds", "what it cost"),
    ),
)

VIEWS = (
    _RUN_STRETCHES,
    _LEAD_STEPS,
    _STEP_TIMES,
    _LEDGER,
    _GOODPUT,
)
