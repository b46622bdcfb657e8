"""A chart as SVG, without a library: dots on a logarithmic scale, in colours that read on light and on dark."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH: Final = 860
LABELS: Final = 290
"""Where the scale begins."""
SCALE: Final = 480
LINE: Final = 26
HEAD: Final = 44
"""The height of a panel's title."""
FOOT: Final = 30
"""The height of a panel's axis."""

TEXT: Final = "#6e7681"
OURS: Final = "#1a7fd4"
OTHERS: Final = "#8b949e"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One group of figures."""

    title: str
    bars: Mapping[str, float]
    """Figures above zero by name, in the order in which they stand."""


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = TEXT, weight: str = "normal") -> str:
    style = f'fill="{colour}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{html.escape(text)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _panel(panel: Panel, top: float, low: int, high: int, ours: str) -> list[str]:
    """One panel, on a scale from ten to the power of `low` to that of `high`."""

    def place(figure: float) -> float:
        return LABELS + SCALE * (math.log10(figure) - low) / (high - low)

    bottom = top + HEAD + LINE * len(panel.bars)
    parts = [_text(16, top + 28, panel.title, weight="bold")]
    for power in range(low, high + 1):
        x = place(10**power)
        parts.append(f'<g opacity="0.35">{_line((x, top + HEAD - 4), (x, bottom), OTHERS, 1)}</g>')
        parts.append(_text(x, bottom + 16, f"{10**power:,}", anchor="middle"))
    for index, (name, figure) in enumerate(panel.bars.items()):
        y, x = top + HEAD + LINE * (index + 0.5), place(figure)
        mine = name.startswith(ours)
        colour, weight = (OURS, "bold") if mine else (OTHERS, "normal")
        parts.append(_text(LABELS - 12, y + 4, name, anchor="end", colour=OURS if mine else TEXT, weight=weight))
        parts.append(_line((LABELS, y), (x, y), colour, 3))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>')
        parts.append(_text(x + 11, y + 4, f"{figure:,.0f}", colour=OURS if mine else TEXT, weight=weight))
    return parts


def chart(title: str, panels: Sequence[Panel], *, ours: str) -> str:
    """All panels below one another on one scale; names that begin with `ours` stand out.

    Raises:
        ValueError: no panel has a figure.
    """
    shown = [panel for panel in panels if panel.bars]
    figures = [figure for panel in shown for figure in panel.bars.values()]
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    top, parts = 40.0, [_text(16, 28, f"{title} (logarithmic scale, more is better)")]
    for panel in shown:
        parts += _panel(panel, top, low, max(high, low + 1), ours)
        top += HEAD + LINE * len(panel.bars) + FOOT
    size = f'width="{WIDTH}" height="{top:.0f}" viewBox="0 0 {WIDTH} {top:.0f}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{html.escape(title)}">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"
