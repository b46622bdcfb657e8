"""The report's page, piece by piece. What a run has to say enters as text of a tree, or as JSON that nothing executes.

The static part is a tree of elements that the standard library serialises, and so escapes. Trajectories are blocks of
JSON without `<`, `>` and `&`, which `_report.js` turns into text nodes. Why: `research-wiki/design/0024-report.md`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from polyloop.cli._report_runs import Row, duration
from polyloop.cli._text import counted, moment
from polyloop.types import JSONValue

BINS: Final = 20
"""How many columns the chart of step counts has at most."""

_INVISIBLE: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_KEPT: Final = frozenset("\n\t\u200c\u200d")  # the joiners are spelling in some scripts and in emoji


def is_invisible(character: str) -> bool:
    """Whether a reader would not see it, or see something else because of it. `_report.js` has the same rule."""
    return character not in _KEPT and unicodedata.category(character) in _INVISIBLE


def data_block(number: int, trajectory: JSONValue) -> str:
    """A run's trajectory as an inert block of the page: ASCII without a character that could end it."""
    text = json.dumps(trajectory, ensure_ascii=True, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="d{number}">{text}</script>\n'


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("ascii")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('ascii')).digest()).decode('ascii')}'"


def head() -> str:
    """Up to the opening of the body. Nothing but this page's own script and style is allowed to do anything."""
    style, script = _file("_report.css"), _file("_report.js")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>PolyLoop report</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )


def foot() -> str:
    """The script and the end. Behind the data, so that the table can be read while those still arrive."""
    return f"<script>{_file('_report.js')}</script>\n</body>\n</html>\n"


def overview(title: str, made: str, rows: Sequence[Row]) -> Iterator[str]:
    """All that can be read without JavaScript, in pieces: the heading, the charts and the table.

    Args:
        title: What the runs were read from, without secrets.
        made: When and by which version, in words.
        rows: The runs, in the order in which they are shown first.
    """
    yield "<main>\n"
    yield _element("h1", {}, f"Runs of {title}")
    yield _element("p", {"class": "made"}, made)
    charts = ET.Element("div", {"class": "charts"})
    _reasons(charts, rows)
    _step_counts(charts, rows)
    yield _html(charts)
    yield '<div id="tools"></div>\n<section id="comparison" aria-label="Comparison" tabindex="-1" hidden></section>\n'
    yield '<table id="runs">\n'
    yield _element("caption", {}, counted(len(rows), "run"))
    yield _headings()
    yield "<tbody>\n"
    for number, row in enumerate(rows):
        yield _row(number, row)
    yield "</tbody>\n</table>\n"
    yield _element("noscript", {}, "Sorting, trajectories and comparisons need JavaScript; the table does not.")
    yield '<p id="said" role="status" class="said"></p>\n</main>\n'


def _html(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode", method="html") + "\n"


def _element(name: str, attributes: dict[str, str], text: str) -> str:
    element = ET.Element(name, attributes)
    _text(element, text)
    return _html(element)


def _text(parent: ET.Element, text: str) -> None:
    """Append text; what is invisible is named in its place, so that nothing can disguise a key."""
    shown = ""
    for character in text:
        if not is_invisible(character):
            shown += character
            continue
        _append(parent, shown)
        shown = ""
        ET.SubElement(parent, "span", {"class": "code"}).text = _code(character)
    _append(parent, shown)


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"


def _spoken(text: str) -> str:
    """Text for an attribute, where there are no elements to tell names and text apart."""
    return "".join(_code(character) if is_invisible(character) else character for character in text)


def _append(parent: ET.Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


# --- the table

_COLUMNS: Final = (
    # heading, how it is sorted, class
    ("Run", "text", "key"),
    ("Outcome", "text", "outcome"),
    ("Steps", "number", "figure"),
    ("Duration", "number", "figure"),
    ("Model", "number", "figure wide"),
    ("Actions", "number", "figure wide"),
    ("Started (UTC)", "text", "wide"),
)


def _headings() -> str:
    head = ET.Element("thead")
    line = ET.SubElement(head, "tr")
    for heading, sort, kind in _COLUMNS:
        _text(ET.SubElement(line, "th", {"scope": "col", "class": kind, "data-sort": sort}), heading)
    return _html(head)


def _row(number: int, row: Row) -> str:
    line = ET.Element("tr", {"data-run": str(number)})
    _text(ET.SubElement(line, "th", {"scope": "row", "class": "key"}), row.key)
    outcome = ET.SubElement(line, "td", {"class": "outcome"})
    reason = ET.SubElement(outcome, "span", {"class": f"reason {_tone(row.outcome)}"})
    first, *others = row.outcome.split("_")
    _text(reason, first)
    for word in others:
        _append(reason, "_")
        ET.SubElement(reason, "wbr")
        _text(reason, word)
    if row.damage is not None:
        _text(ET.SubElement(outcome, "small"), row.damage)
    _figure(line, row.steps, "-" if row.steps is None else f"{row.steps:,}", "figure")
    _figure(line, row.wall_ms, "-" if row.wall_ms is None else duration(row.wall_ms), "figure")
    _figure(line, row.model_ms, duration(row.model_ms), "figure wide")
    _figure(line, row.action_ms, duration(row.action_ms), "figure wide")
    _text(ET.SubElement(line, "td", {"class": "wide"}), moment(row.started))
    return _html(line)


def _figure(line: ET.Element, value: int | None, shown: str, kind: str) -> None:
    # What cannot be told sorts below everything that can.
    _text(ET.SubElement(line, "td", {"class": kind, "data-value": str(-1 if value is None else value)}), shown)


def _tone(outcome: str) -> str:
    """The class that colours an outcome; an unknown one, of a later version, has no colour."""
    if outcome in ("task_completed", "agent_finished"):
        return "good"
    if outcome in ("env_error", "llm_error", "resume_state_unknown", "damaged", "parse_failed_repeatedly"):
        return "bad"
    return "open"


# --- charts: positions in percent, so that they fit any width and their text keeps its size


def _chart(parent: ET.Element, heading: str, height: int, said: str) -> ET.Element:
    figure = ET.SubElement(parent, "figure")
    _text(ET.SubElement(figure, "figcaption"), heading)
    return ET.SubElement(
        figure, "svg", {"role": "img", "aria-label": _spoken(said), "width": "100%", "height": str(height)}
    )


def _mark(parent: ET.Element, kind: str, *, x: float, y: float, width: float, height: float) -> None:
    place = {"x": f"{x:.3f}%", "y": f"{y:.1f}", "width": f"{width:.3f}%", "height": f"{height:.1f}"}
    ET.SubElement(parent, "rect", {**place, "class": kind})


def _label(parent: ET.Element, x: float, y: float, anchor: str, text: str) -> None:
    place = {"x": f"{x:.3f}%", "y": f"{y:.1f}", "text-anchor": anchor}
    _text(ET.SubElement(parent, "text", place), text)


def _reasons(parent: ET.Element, rows: Sequence[Row]) -> None:
    counts = Counter(row.outcome for row in rows).most_common()
    said = "Why runs stopped: " + (", ".join(f"{outcome} {count}" for outcome, count in counts) or "no runs")
    svg = _chart(parent, "Why runs stopped", 36 * len(counts) + 4, said)
    for place, (outcome, count) in enumerate(counts):
        top = 36 * place
        _label(svg, 0, top + 14, "start", outcome)
        _label(svg, 100, top + 14, "end", f"{count:,} ({count / len(rows):.0%})")
        _mark(svg, f"bar {_tone(outcome)}", x=0, y=top + 20, width=100 * count / counts[0][1], height=9)


def binned(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Step counts in columns of one width: first, last, how many runs."""
    if not counts:
        return []
    width = math.ceil((max(counts) + 1) / BINS)
    found = Counter(count // width for count in counts)
    return [(each * width, (each + 1) * width - 1, found[each]) for each in range(max(counts) // width + 1)]


def _step_counts(parent: ET.Element, rows: Sequence[Row]) -> None:
    bins = binned([row.steps for row in rows if row.steps is not None])
    said = "Runs by number of steps: " + (", ".join(_range_said(*each) for each in bins if each[2]) or "no runs")
    svg = _chart(parent, "Steps of a run", 150, said)
    most = max((count for _, _, count in bins), default=1)
    # One label in about 50 pixels on a phone: the first, the last, and a few in between.
    every = math.ceil(len(bins) / 5)
    for place, (first, last, count) in enumerate(bins):
        left, wide = 100 * place / len(bins), 100 / len(bins)
        tall = 100 * count / most
        _mark(svg, "bar", x=left + wide * 0.08, y=120 - tall, width=wide * 0.84, height=tall)
        if count and len(bins) <= BINS // 2:
            _label(svg, left + wide / 2, 116 - tall, "middle", f"{count:,}")
        if place % every == 0:
            # The first one begins where the columns do: a wide label would be cut off on its left.
            x, anchor = (0.5, "start") if not place and len(bins) > BINS // 2 else (left + wide / 2, "middle")
            _label(svg, x, 138, anchor, f"{first}" if first == last else f"{first}-{last}")
    if len(bins) > BINS // 2:
        _label(svg, 0, 12, "start", f"highest column: {counted(most, 'run')}")


def _range_said(first: int, last: int, count: int) -> str:
    return f"{first if first == last else f'{first} to {last}'} steps {count}"


def document(title: str, made: str, rows: Sequence[Row], blocks: Iterable[str]) -> Iterator[str]:
    """The whole page, in pieces."""
    yield head()
    yield from overview(title, made, rows)
    yield from blocks
    yield foot()
