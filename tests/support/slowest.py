"""What the last session of tests took: ``make test-times`` writes it where people and the tests look for it.

From the reports that ``make test`` and ``make test-rest`` leave in ``.pytest_cache`` (JUnit XML) to
``tests/durations.json``, by which files and long tests are given to processes (seconds of each), and to the
table of the slowest tests in ``docs/testing.md``.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / ".pytest_cache"
DURATIONS = ROOT / "tests" / "durations.json"
PAGE = ROOT / "docs" / "testing.md"
FIRST, LAST = "<!-- slowest: make test-times -->", "<!-- end -->"
ROWS = 30
LONG_SECONDS = 2.0
"""From here on a test is named by itself in ``durations.json``."""


def seconds_by_test(report: Path) -> dict[str, float]:
    """Set-up, call and teardown of each test, by its node id without the folder ``tests``."""
    seconds: Counter[str] = Counter()
    for case in ET.parse(report).getroot().iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        seconds[f"{file}::{case.get('name')}"] += float(case.get("time", 0))
    return dict(seconds)


def table(seconds: dict[str, float]) -> str:
    r"""The slowest, as Markdown.

    >>> print(table({"tests/a.py::test_b": 1.25, "tests/a.py::test_c[x|y]": 2.0}))
    | seconds | test |
    |---:|---|
    | 2.0 | `a.py::test_c[x\|y]` |
    | 1.2 | `a.py::test_b` |
    """
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:ROWS]
    rows = [f"| {spent:.1f} | `{_cell(name)}` |" for name, spent in slowest]
    return "\n".join(["| seconds | test |", "|---:|---|", *rows])


def _cell(name: str) -> str:
    return name.removeprefix("tests/").replace("|", "\\|")


def main() -> int:
    seconds: dict[str, float] = {}
    for report in sorted(REPORTS.glob("tests*.xml")):
        seconds |= seconds_by_test(report)
    if not seconds:
        print(f"no report in {REPORTS}: run make test first", file=sys.stderr)
        return 1
    units = Counter({name: spent for name, spent in seconds.items() if spent >= LONG_SECONDS})
    for name, spent in seconds.items():
        units[name.partition("::")[0]] += spent
    rounded = {name: round(spent, 1) for name, spent in units.most_common() if spent >= 0.1}
    DURATIONS.write_text(json.dumps(rounded, indent=1) + "\n")
    head, _, rest = PAGE.read_text().partition(FIRST)
    PAGE.write_text(f"{head}{FIRST}\n{table(seconds)}\n{LAST}{rest.partition(LAST)[2]}")
    print(f"{len(seconds)} tests: {DURATIONS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
