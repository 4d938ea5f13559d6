"""Makes docs/images/report.png: the top of ``driftline report`` of a run, as a headless Chromium shows it.

python benchmarks/report_picture.py --root driftline-data [RUN]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from driftline.cli.analysis import write_report

REPOSITORY = Path(__file__).parents[1]
WIDTH, HEIGHT = 1180, 1240


def _browser() -> Any:
    path = REPOSITORY / "tests" / "support" / "browser.py"
    spec = importlib.util.spec_from_file_location("driftline_browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?")
    parser.add_argument("--root", default="driftline-data")
    parser.add_argument("--out", default=str(REPOSITORY / "docs" / "images" / "report.png"))
    given = parser.parse_args()
    browser = _browser()
    found = browser.chromium()
    if found is None:
        print("no Chromium here: install one, or name it in DRIFTLINE_TEST_BROWSER", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report([given.run] if given.run else [], [], root=given.root, out=page)
        shot = f"--screenshot={Path(given.out).resolve()}"
        browser.run(found, page, Path(folder), shot, width=WIDTH, height=HEIGHT)
    print(f"written: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
