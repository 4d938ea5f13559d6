"""Figures of matplotlib as PNG bytes, or as SVG that takes its ink from the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from driftline.visible import visible

_INK_SENTINEL, _FAINT_SENTINEL, _PAPER_SENTINEL = "#010203", "#040506", "#fafbfc"
_STYLE: Any = {
    "font.size": 10,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "driftline",
    "text.parse_math": False,  # a name may hold dollar signs
}


class Ink(NamedTuple):
    """Colours of text, of lines that stand back, and of what is behind."""

    strong: str
    faint: str
    paper: str = "white"


ON_WHITE = Ink("#1f2933", "#c9d1d9")
Draw = Callable[[Ink], Figure]


def as_png(draw: Draw) -> bytes:
    """The figure on white, 150 dots per inch."""
    with _style(ON_WHITE) as target:
        draw(ON_WHITE).savefig(target, format="png", facecolor="white", dpi=150)
    return target.getvalue()


def as_svg(draw: Draw, *, says: str = "", prefix: str = "") -> str:
    """An ``<svg>`` element whose text and axes have the CSS colours ``--ink`` and ``--faint`` of the page.

    ``says`` is what it shows, for who cannot see it; ``prefix`` keeps its ids apart from those of another.
    """
    ink = Ink(_INK_SENTINEL, _FAINT_SENTINEL, _PAPER_SENTINEL)
    with _style(ink) as target:
        figure = draw(ink)
        for background in (figure.patch, *(axes.patch for axes in figure.axes)):
            background.set(facecolor="none", edgecolor="none")
        # Figure.savefig would draw it twice: once for the layout, which drawing computes anyway.
        FigureCanvasSVG(figure).print_svg(target, metadata={"Date": None})  # type: ignore[no-untyped-call]
    text = target.getvalue().decode()
    text = text[text.index("<svg") :].replace(_INK_SENTINEL, "var(--ink)")
    text = text.replace(_FAINT_SENTINEL, "var(--faint)").replace(_PAPER_SENTINEL, "var(--paper)")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    if prefix:
        text = re.sub(r'\bid="', f'id="{prefix}', text)
        text = text.replace("url(#", f"url(#{prefix}").replace('href="#', f'href="#{prefix}')
    if says:
        said = escape(visible(says))
        text = re.sub(r"<svg([^>]*)>", lambda m: f'<svg role="img" aria-label="{said}"{m[1]}>', text, count=1)
    return text


@contextmanager
def _style(ink: Ink) -> Iterator[io.BytesIO]:
    """Where to draw to, in our style."""
    colours: Any = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink.strong
    )
    with matplotlib.rc_context({**_STYLE, **colours}), warnings.catch_warnings():
        # A name may hold letters that the font lacks: the page's own fonts show them, a PNG has boxes there.
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from")
        warnings.filterwarnings("ignore", message=r"(?s)Matplotlib currently does not support")
        yield io.BytesIO()
