"""The command line: ``driftline COMMAND``.

Exit codes: 0 done, 1 it failed (an SQL error, a broker that is not there, a bug), 2 wrong settings or usage,
130 when Ctrl-C ended something that could not end in order. Errors are one line; ``--log-level debug`` adds
the trace.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``driftline`` command."""
    from driftline.cli.app import app

    app(prog_name="driftline")
