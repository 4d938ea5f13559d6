"""Does the test suite see? Bugs are put into copies of the sources, one at a time; a test must fail for each.

    python tests/mutants/mutants.py [--only PATTERN] [--jobs N] [--form short] [--json FILE]

``mutants.toml`` lists the bugs: text of one source file, what replaces it, what a user would suffer, and the
pytest arguments that are to notice. The working tree is never changed: each bug gets a copy of it (sources
and tests, links kept) which is first on ``PYTHONPATH``, so child processes see the bug too; of a changed
file the caches of Python and numba are left behind. The arguments of chosen mutants run once each without a
bug, since a test that fails anyway notices nothing.

Exit code 1 if a bug was missed, could not be applied or could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
PYTEST = (
    *("-x", "-q", "-p", "no:cacheprovider"),
    *(("-n", "0") if importlib.util.find_spec("xdist") else ()),
)
"""How pytest is called: in one process, up to the first failure."""
NOT_COPIED = (
    *(".git", ".venv", ".cache", ".device", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    *("build", "dist", "driftline-data", "*.egg-info"),
)
LINKED = (".venv", ".cache")
"""Large and not changed by tests: the copy has links to them."""
_RUNNING: set[subprocess.Popen[Any]] = set()
TIMES_AS_LONG, PATIENCE_S = 5, 120
"""Tests that run so many times as long as without the bug, and so much longer, hang: that is noticed, too."""


class Mutant(NamedTuple):
    """One bug."""

    name: str
    file: str
    """Below the repository."""
    old: str
    """Occurs once in the file."""
    new: str
    harm: str
    """What a user would suffer."""
    tests: tuple[str, ...]
    """Arguments of pytest."""
    form: str = "short"
    """ "short": tests of ``make test`` notice, and no others are asked; "long": only those of test-rest."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Marks that the list itself names win, since pytest takes the last."""
        return ("-m", "not long", *self.tests) if self.form == "short" else self.tests

    @property
    def room(self) -> str:
        parts = Path(self.file).parts
        inside = parts[2:] if parts[:2] == ("src", "driftline") else parts
        return inside[0] if len(inside) > 1 else "contract"


class Result(NamedTuple):
    """What became of a mutant: "caught", "missed", or why it was not tried."""

    mutant: Mutant
    state: str
    by: str
    """The first test that failed; for what was not tried, the reason."""
    seconds: float

    @property
    def fine(self) -> bool:
        return self.state == "caught"


class Outcome(NamedTuple):
    """One run of pytest."""

    passed: int
    failed: str
    """The first test that failed; "" if none did."""
    broken: str
    """Why it could not run at all; "" if it could."""
    seconds: float


def read_list(path: Path = LIST) -> list[Mutant]:
    """The mutants of a file, in its order."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def mutated(mutant: Mutant, root: Path) -> str:
    """The source with the bug. Raises ValueError if the bug cannot be applied."""
    try:
        source = (root / mutant.file).read_text()
    except FileNotFoundError:
        raise ValueError(f"{mutant.file} is not there") from None
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(f"its old text is {count} times in {mutant.file}")
    changed = source.replace(mutant.old, mutant.new)
    try:
        compile(changed, mutant.file, "exec")
    except SyntaxError as error:
        raise ValueError(f"with it {mutant.file} is no Python: {error}") from None
    return changed


@contextlib.contextmanager
def tree(root: Path, mutant: Mutant | None = None) -> Iterator[Path]:
    """A copy of the repository, with the bug if one is given."""
    with tempfile.TemporaryDirectory(prefix="driftline-mutant-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for name in LINKED:
            if (root / name).exists():
                (copy / name).symlink_to((root / name).resolve())
        shared = root.parent / "shared"
        if shared.exists():  # real data that tests look for beside the repository
            (copy.parent / "shared").symlink_to(shared.resolve())
        if mutant is not None:
            _apply(mutant, copy)
        yield copy


def _apply(mutant: Mutant, copy: Path) -> None:
    changed = mutated(mutant, copy)
    file = copy / mutant.file
    for cache in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        cache.unlink()
    file.write_text(changed)


def run_pytest(copy: Path, arguments: Sequence[str], limit_s: float | None = None) -> Outcome:
    """Runs tests in a copy, which is first on the path of everything that they start."""
    report = copy.parent / "report.xml"
    environ = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environ |= {"PYTHONPATH": str(copy / "src"), "CI": "1"}  # CI: random tests draw the same each time
    command = [sys.executable, "-m", "pytest", *PYTEST, f"--junitxml={report}", *arguments]
    begun = time.monotonic()
    with (copy.parent / "output").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=copy, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        _RUNNING.add(process)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return Outcome(0, f"no test: they did not end in {limit_s:.0f} s", "", time.monotonic() - begun)
        finally:
            _end(process)
            _RUNNING.discard(process)
        seconds = time.monotonic() - begun
        output.seek(0)
        last = " ".join(output.read().split("\n")[-12:])
    if code not in (0, 1, 2) or not report.exists():
        return Outcome(0, "", f"pytest ended with {code}: {last[-600:]}", seconds)
    passed, failed = _read_report(report)
    return Outcome(passed, failed or ("a test" if code else ""), "", seconds)


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends pytest and what it left running."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def _read_report(report: Path) -> tuple[int, str]:
    """How many tests passed, and the first that did not."""
    passed, failed = 0, ""
    for case in ET.parse(report).getroot().iter("testcase"):
        verdicts = {child.tag for child in case}
        if verdicts & {"failure", "error"}:
            failed = failed or "::".join(filter(None, (case.get("classname"), case.get("name"))))
        elif "skipped" not in verdicts:
            passed += 1
    return passed, failed


def run_unmutated(root: Path, arguments: Sequence[str]) -> tuple[str, float]:
    """Why these tests cannot tell anything, "" if they can; and the seconds they take."""
    with tree(root) as copy:
        outcome = run_pytest(copy, arguments)
    why = outcome.broken
    if outcome.failed:
        why = f"fails without the bug: {outcome.failed}"
    elif not why and not outcome.passed:
        why = "all its tests are skipped here"
    return why, outcome.seconds


def try_one(mutant: Mutant, root: Path, arguments: Sequence[str], limit_s: float) -> Result:
    """Runs the tests of one mutant."""
    try:
        with tree(root, mutant) as copy:
            outcome = run_pytest(copy, arguments, limit_s)
    except ValueError as error:
        return Result(mutant, "not applied", str(error), 0.0)
    if outcome.broken:
        return Result(mutant, "not tried", outcome.broken, outcome.seconds)
    return Result(mutant, "caught" if outcome.failed else "missed", outcome.failed, outcome.seconds)


def run_all(
    chosen: Sequence[Mutant], root: Path, *, jobs: int, tests: Sequence[str] | None = None
) -> list[Result]:
    """All results, in the order of the list; a line is printed for each as it comes."""
    asked = {mutant: tuple(tests) if tests is not None else mutant.arguments for mutant in chosen}
    lists = list(dict.fromkeys(asked.values()))
    with ThreadPoolExecutor(jobs) as pool:
        print(f"{len(lists)} lists of tests without a bug, {len(chosen)} mutants", flush=True)

        def run_first(arguments: tuple[str, ...]) -> tuple[str, float]:
            why, seconds = run_unmutated(root, arguments)
            print(f"{why or 'passes':<11} {seconds:6.1f} s  {shlex.join(arguments)}", flush=True)
            return why, seconds

        def attempt(mutant: Mutant) -> Result:
            why, seconds = before[asked[mutant]]
            if why:
                result = Result(mutant, "not tried", why, 0.0)
            else:
                limit_s = TIMES_AS_LONG * seconds + PATIENCE_S
                result = try_one(mutant, root, asked[mutant], limit_s)
            print(
                f"{result.state:<11} {result.seconds:6.1f} s  {mutant.room}: {mutant.name}  [{result.by}]",
                flush=True,
            )
            return result

        try:
            before = dict(zip(lists, pool.map(run_first, lists), strict=True))
            return list(pool.map(attempt, chosen))
        except KeyboardInterrupt:
            _stop(pool)
            raise


def _stop(pool: ThreadPoolExecutor) -> None:
    """Nothing begins any more, and what runs ends."""
    pool.shutdown(wait=False, cancel_futures=True)
    for process in list(_RUNNING):
        _end(process)


def summary(results: Sequence[Result]) -> str:
    """A table by room, and the mutants that nobody noticed."""
    lines = [f"{'room':<12} mutants  caught  missed  other  seconds"]
    rooms = sorted({result.mutant.room for result in results})
    for room in (*rooms, "all"):
        mine = [result for result in results if room in ("all", result.mutant.room)]
        states = Counter(result.state for result in mine)
        other = len(mine) - states["caught"] - states["missed"]
        seconds = sum(result.seconds for result in mine)
        lines.append(
            f"{room:<12} {len(mine):7}  {states['caught']:6}  {states['missed']:6}  {other:5}  {seconds:7.0f}"
        )
    lines += [f"{r.state}: {r.mutant.name}: {r.mutant.harm} [{r.by}]" for r in results if not r.fine]
    return "\n".join(lines)


def as_json(results: Sequence[Result]) -> str:
    """Everything, for programs."""
    rows = [
        {
            "name": result.mutant.name,
            "room": result.mutant.room,
            "file": result.mutant.file,
            "form": result.mutant.form,
            "state": result.state,
            "by": result.by,
            "seconds": round(result.seconds, 2),
            "harm": result.mutant.harm,
            "tests": list(result.mutant.tests),
        }
        for result in results
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="names or rooms, * and ? allowed")
    parser.add_argument("--form", choices=("short", "long", "all"), default="all", help="of which form")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the results there, too")
    parser.add_argument("--tests", metavar="ARGS", help="arguments of pytest in place of those of the list")
    parser.add_argument("--root", type=Path, default=REPOSITORY, metavar="DIR", help="another repository")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="another list of mutants")
    options = parser.parse_args(arguments)
    chosen = [
        mutant
        for mutant in read_list(options.list)
        if options.form in ("all", mutant.form)
        and any(
            fnmatch.fnmatchcase(name, pattern)
            for name in (mutant.name, mutant.room)
            for pattern in options.only or ["*"]
        )
    ]
    if not chosen:
        print("no mutant has such a name", file=sys.stderr)
        return 2
    tests = None if options.tests is None else shlex.split(options.tests)
    results = run_all(chosen, options.root.resolve(), jobs=options.jobs, tests=tests)
    print(summary(results))
    if options.json:
        options.json.write_text(as_json(results))
    return 0 if all(result.fine for result in results) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    sys.exit(main())
