"""How a run is named in the macros: by its id, or by the name that people gave it."""

from __future__ import annotations

from driftline.storage.views.view import View

_RUN_ID = View(
    "run_id",
    "the id of a run: the text itself if it is one or was given as one, else the newest run of that name "
    "(case 3: names may repeat), else the text as it is; every macro that takes a run takes either",
    """
    coalesce((
        SELECT arg_max(p.run, (p.run = id_or_name, p.run = 'id-' || left(sha256(id_or_name), 24),
            p."time", p.run)) FROM (
            SELECT q.run, min(q."time") AS "time" FROM process_events AS q
            WHERE q.event = 'started' AND (q.run = id_or_name OR q.name = id_or_name
                OR q.run = 'id-' || left(sha256(id_or_name), 24))
            GROUP BY q.run) AS p),
        id_or_name)
    """,
    "SELECT run_id('digits') AS by_name, run_id('01k4-digits') AS by_id",
    "id_or_name",
)

VIEWS = (_RUN_ID,)
