"""A headless Chromium that looks at one file: what it logs, how wide it is, what it asked the network for."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

_PROBE = """<script>
addEventListener("load", () => { setTimeout(() => {
  const found = document.createElement("pre"); found.id = "probe";
  found.textContent = JSON.stringify({
    wide: document.documentElement.scrollWidth, room: innerWidth,
    requests: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:")),
    paper: getComputedStyle(document.body).backgroundColor,
    untitled: [...document.querySelectorAll("svg")].filter(s => !s.getAttribute("aria-label")).length,
    charts: document.querySelectorAll("svg").length,
  });
  document.body.appendChild(found); }, 0); });
</script>"""


class Seen(NamedTuple):
    """What the browser says of a page."""

    console: list[str]
    wide: int
    room: int
    requests: list[str]
    paper: str
    untitled: int
    charts: int


def chromium() -> str | None:
    """Where a Chromium is, if there is one."""
    named = os.environ.get("DRIFTLINE_TEST_BROWSER")
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome")]
    return named or next(filter(None, found), None)


def look(browser: str, page: Path, folder: Path, *, width: int, dark: bool = False) -> Seen:
    """Loads ``page`` in a window of ``width`` pixels; nothing outside the file can be reached from there."""
    copy = folder / f"{page.stem}-{width}-{dark}.html"
    copy.write_text(page.read_text().replace("</body>", f"{_PROBE}</body>"))
    done = run(browser, copy, folder, "--dump-dom", width=width, height=900, dark=dark)
    probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert probe, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(html.unescape(probe[1]))
    return Seen(console=[each for each in done.stderr.splitlines() if "CONSOLE" in each], **told)


def run(
    browser: str, page: Path, folder: Path, *options: str, width: int, height: int, dark: bool = False
) -> subprocess.CompletedProcess[str]:
    """One headless start."""
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-dev-shm-usage", "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},{height}",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []), *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
