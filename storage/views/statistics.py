"""The statistics that the other macros rest on, in plain SQL: Student's t, and a curve in few robust points.

Formulas, limits and measured calibration: docs/analysis.md.
"""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.view import View

FINITE = 1e150
"""Values from here on are left out like infinities: their squares would overflow."""

_STUDENT_95 = View(
    "student_95",
    "how many standard errors a 95 % interval reaches to each side with `df` degrees of freedom (any number "
    "from 1 on, error under 0.002 %)",
    """
    1.959963984540054 * exp((1.0 / df) * (1.210794393 + (1.0 / df) * (0.699702644 + (1.0 / df) * (0.202341537
        + (1.0 / df) * (-0.383822209 + (1.0 / df) * (0.159221761 + (1.0 / df) * -0.019062866))))))
    """,
    "SELECT student_95(1) AS one, student_95(10) AS ten, student_95(1e9) AS many",
    "df",
)

_STUDENT_P = View(
    "student_p",
    "two-sided p-value of Student's t with `df` degrees of freedom, by Simpson's rule over the angle",
    """
    CASE WHEN t_value IS NOT NULL AND df IS NOT NULL THEN least(1.0, exp(lgamma((least(df, 1e5) + 1) / 2) - lgamma(least(df, 1e5) / 2)) * 2 / sqrt(pi())
        * (CASE WHEN df < 30 THEN pi() / 2 ELSE atan((abs(t_value) + 12) / sqrt(least(df, 1e5))) END
            - atan(abs(t_value) / sqrt(least(df, 1e5)))) / 600
        * list_sum(list_transform(range(0, 201), lambda i:
            CASE WHEN i = 0 OR i = 200 THEN 1 WHEN i % 2 = 1 THEN 4 ELSE 2 END
            * power(cos(atan(abs(t_value) / sqrt(least(df, 1e5))) + i / 200.0
                * (CASE WHEN df < 30 THEN pi() / 2
                    ELSE atan((abs(t_value) + 12) / sqrt(least(df, 1e5))) END
                    - atan(abs(t_value) / sqrt(least(df, 1e5))))), least(df, 1e5) - 1)))) END
    """,
    "SELECT student_p(2.0, 1) AS one, student_p(2.5, 5) AS five, student_p(1.96, 1000) AS thousand",
    "t_value, df",
)

_LEVELS = View(
    "levels",
    "the finite part of a curve in at most `most` bins of equally many points, from `since_step` to "
    "`until_step`: what the robust analyses look at, so that their work has a bound",
    f"""
    TABLE
    WITH c AS (
        SELECT k.step, k.time, k.value, row_number() OVER (ORDER BY k.step) - 1 AS place,
            count(*) OVER () AS total
        FROM run_curves(of_run) AS k
        WHERE k.metric = of_metric AND abs(k.value) < {FINITE}
            AND (since_step IS NULL OR k.step >= since_step)
            AND (until_step IS NULL OR k.step <= until_step))
    SELECT b.bin, avg(b.step) AS step, min(b.step) AS first_step, max(b.step) AS last_step,
        median(b.value) AS value, avg(b.value) AS mean, min(b.time) AS time, count(*) AS n
    FROM (SELECT c.*, c.place * least(c.total, most) // c.total AS bin FROM c) AS b
    GROUP BY b.bin ORDER BY b.bin
    """,
    "FROM levels('digits', 'loss', most := 3)",
    "of_run, of_metric, since_step := NULL, until_step := NULL, most := 400",
    columns=(
        ("bin", "from 0, in the order of the steps"),
        ("step", "mean of the steps of the bin"),
        ("first_step", "first step of the bin"),
        ("last_step", "last step of the bin"),
        ("value", "median of the bin's finite values"),
        ("mean", "their mean"),
        ("time", "of the first step"),
        ("n", "finite points in the bin"),
    ),
)

VIEWS = (_STUDENT_95, _STUDENT_P, _LEVELS)
