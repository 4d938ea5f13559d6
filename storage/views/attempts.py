"""Instants, and which attempt of its run each sample belongs to.

That is the pipeline's word, the facts that its process joined one: with a ``run.rewind`` of the process from
that place in the log on, else from its first record on (where a process turned out to be of a later attempt,
the later fact counts); 0 where there is no such fact.
"""

from __future__ import annotations

from driftline.storage.views.view import View

_UTC_DAY = View(
    "utc_day",
    "the UTC date of an instant",
    "make_timestamp(epoch_us(instant))::DATE",
    "SELECT utc_day(time) AS day, count(*) AS samples FROM samples WHERE run = '01k4-digits' GROUP BY day",
    "instant",
)

_ATTEMPTS = View(
    "attempts",
    "one stretch of the log in which a process belonged to an attempt: [from_offset, until_offset)",
    """
    WITH joined AS (
        SELECT f.run, f.process, f.topic_uuid, f.attempt, coalesce(r."offset", 0) AS from_offset
        FROM facts AS f LEFT JOIN (FROM process_events WHERE event = 'rewound') AS r
          ON r.run = f.run AND r.process = f.process AND r.topic_uuid = f.topic_uuid
          AND r."offset" = f."offset"
        WHERE f.process IS NOT NULL AND f.what = 'process_joined')
    SELECT run, process, topic_uuid, max(attempt) AS attempt, from_offset,
        coalesce(lead(from_offset) OVER (PARTITION BY run, process, topic_uuid ORDER BY from_offset),
            9223372036854775807) AS until_offset
    FROM joined GROUP BY run, process, topic_uuid, from_offset
    """,
    "SELECT process, attempt, from_offset FROM attempts WHERE run = '01k4-digits' ORDER BY process",
)

_RESTARTED = View(
    "restarted",
    "one run that has more than its first attempt; all samples of other runs belong to attempt 0",
    """
    SELECT DISTINCT run FROM facts
    WHERE attempt > 0 AND what IN ('run_started', 'attempt_started', 'process_joined')
    """,
    "FROM restarted",
)

OF_RESTARTED = """
    SELECT s.*, coalesce(a.attempt, 0) AS attempt
    FROM (FROM samples SEMI JOIN restarted USING (run)) AS s LEFT JOIN attempts AS a
      ON s.run = a.run AND s.process = a.process AND s.topic_uuid = a.topic_uuid
      AND s."offset" >= a.from_offset AND s."offset" < a.until_offset"""
"""The rows of ``sample_attempts`` whose runs were restarted. Views that treat these apart name them so: over
``sample_attempts`` the other half would be planned again, only to be found empty."""

_SAMPLE_ATTEMPTS = View(
    "sample_attempts",
    "samples with the attempt that each belongs to",
    f"""
    SELECT *, 0 AS attempt FROM samples ANTI JOIN restarted USING (run)
    UNION ALL {OF_RESTARTED}
    """,
    "SELECT attempt, count(*) AS samples FROM sample_attempts WHERE run = '01k4-digits' GROUP BY attempt",
)

VIEWS = (
    _UTC_DAY,
    _ATTEMPTS,
    _RESTARTED,
    _SAMPLE_ATTEMPTS,
)
