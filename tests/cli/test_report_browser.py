"""The report in a real browser: nothing that runs say becomes more than text, and people can use the page."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from polyloop.cli._report_page import data_block, document, is_invisible
from polyloop.cli._report_runs import Row, described
from polyloop.stores import RunState, RunSummary
from polyloop.types import EffectKind, JSONValue, ModelReply, Record, RunKey, RunLog
from tests.cli import report_runs as made
from tests.cli.report_browser import Page, needs_chromium, opened
from tests.cli.report_pages import hostile_store, page_of, stored

pytestmark = [needs_chromium, pytest.mark.timeout(300)]

UNFOLD_ALL: Final = "document.querySelectorAll('tbody .key > button').forEach(button => button.click())"
COMPARE_FIRST_TWO: Final = """
document.querySelectorAll('#runs input').forEach((box, index) => { if (index < 2) box.click(); });
document.getElementById('compare').click();
"""
OPEN_ALL: Final = """
document.querySelectorAll('details').forEach(each => { each.open = true; });
document.querySelectorAll('pre button, dd button').forEach(button => button.click());
"""
USED: Final = """
(() => {
  const all = [...document.querySelectorAll('*')];
  return {
    tags: [...new Set(all.map(each => each.localName))].sort(),
    attributes: [...new Set(all.flatMap(each => each.getAttributeNames()))].sort(),
    scripts: [...document.scripts].map(each => each.type),
    owned: typeof window.owned,
  };
})()
"""
TAGS: Final = {
    *("html", "head", "meta", "title", "style", "body", "main", "script", "noscript", "section"),
    *("h1", "h2", "h3", "h4", "p", "small", "span", "div", "mark", "pre", "dl", "dt", "dd", "ol", "li", "wbr"),
    *("figure", "figcaption", "svg", "rect", "text", "details", "summary", "button", "input", "label"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES: Final = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "hidden", "tabindex", "role", "type", "dir"),
    *("aria-label", "aria-expanded", "aria-hidden", "aria-sort", "scope", "colspan", "open", "disabled"),
    *("data-run", "data-sort", "data-value", "x", "y", "width", "height", "text-anchor"),
}
STAYING: Final = re.sub(r"<meta http-equiv=refresh[^>]*>", "", made.CLAIMS)
"""Without what takes the reader to another page, which no page's policy can forbid."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    return page_of(hostile_store(folder / "runs"), folder / "report.html")


@pytest.fixture
def desk(browser: Page) -> Page:
    """The browser as on a desk."""
    metrics = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.command("Emulation.setDeviceMetricsOverride", **metrics)
    browser.command("Emulation.setEmulatedMedia", media="", features=[])
    browser.command("Emulation.setScriptExecutionDisabled", value=False)
    return browser


def without_policy(page: Path, copy: Path) -> Path:
    text, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8"))
    assert count == 1
    copy.write_text(text, "utf-8")
    return copy


# --- hostile text


@pytest.mark.parametrize("policy", [True, False], ids=["policy", "no-policy"])
def test_nothing_that_a_run_says_is_executed_or_fetched(
    policy: bool, desk: Page, hostile: Path, tmp_path: Path
) -> None:
    page = hostile if policy else without_policy(hostile, tmp_path / "report.html")
    desk.load(page)
    for script in (UNFOLD_ALL, COMPARE_FIRST_TWO, OPEN_ALL):
        desk.run(script)
        desk.settle()
    used = desk.run(USED)
    assert used["owned"] == "undefined"
    assert used["scripts"] == ["application/json"] * 5 + [""]
    assert set(used["tags"]) <= TAGS
    assert set(used["attributes"]) <= ATTRIBUTES
    assert desk.requests() == [page.as_uri()]
    assert desk.complaints() == []
    assert not [line for line in desk.left_machine if made.HOST in line]


def test_a_page_that_does_not_escape_is_noticed_by_what_the_test_above_looks_at(desk: Page, tmp_path: Path) -> None:
    page = tmp_path / "naive.html"
    page.write_text(f"<!doctype html><title>naive</title><body>{STAYING}", "utf-8")
    desk.load(page)
    desk.settle()
    used = desk.run(USED)
    assert used["owned"] != "undefined"
    assert not set(used["tags"]) <= TAGS
    assert not set(used["attributes"]) <= ATTRIBUTES
    assert len(desk.requests()) > 1
    assert [line for line in desk.left_machine if made.HOST in line]


def test_were_the_escaping_to_fail_the_policy_alone_lets_nothing_run_or_leave(
    desk: Page, hostile: Path, tmp_path: Path
) -> None:
    page = tmp_path / "broken.html"
    page.write_text(hostile.read_text("utf-8").replace("<main>", f"<main>{STAYING}", 1), "utf-8")
    before = len([line for line in desk.left_machine if made.HOST in line])
    desk.load(page)
    desk.settle()
    assert desk.run("typeof window.owned") == "undefined"
    assert len([line for line in desk.left_machine if made.HOST in line]) == before
    assert any("Content Security Policy" in each for each in desk.complaints())


READ_BACK: Final = """
(() => {
  const read = element => [...element.childNodes].map(node =>
    node.nodeType === 3 ? node.data :
    node.className === 'code' ? String.fromCodePoint(parseInt(node.textContent.slice(2), 16)) : read(node)).join('');
  const texts = document.querySelectorAll('#runs pre, #runs dd, #runs dt, #runs small, tbody .key > button');
  return JSON.stringify([...texts].map(read));
})()
"""


def test_every_text_of_a_run_can_be_read_back_from_the_page_character_by_character(desk: Page, hostile: Path) -> None:
    desk.load(hostile)
    desk.run(UNFOLD_ALL)
    desk.run(OPEN_ALL)
    shown = "\n\n".join(json.loads(desk.run(READ_BACK)))
    fields = [
        *("reply", "original reply", "reasoning", "action", "tool", "arguments", "observation", "parse error"),
        *("call id", "final answer", "library version"),
    ]
    for field in fields:
        assert made.text(field) in shown, field
    assert made.text("error")[:2000] in shown
    names = [json.dumps(made.text(name), ensure_ascii=False) for name in ("param name", "inner name")]
    assert f"{'.'.join(names)}[1]" in shown
    assert str(2**70) in shown
    for name in ("answered", "failed", "open", "misfit", "damaged"):
        assert made.key(name) in shown


def test_a_text_that_would_turn_the_line_around_is_named_and_kept_apart(desk: Page, hostile: Path) -> None:
    desk.load(hostile)
    codes = desk.run("[...document.querySelectorAll('tbody .key .code')].map(each => each.textContent)")
    assert {"U+202E", "U+2028", "U+001B", "U+200B"} <= set(codes)
    assert desk.run("getComputedStyle(document.querySelector('tbody .key')).unicodeBidi") == "isolate"
    desk.run(UNFOLD_ALL)
    desk.run(COMPARE_FIRST_TWO)
    desk.run(OPEN_ALL)
    # As JSON, for a lone surrogate would not come through.
    shown = json.loads(desk.run("JSON.stringify(document.querySelector('main').textContent)"))
    assert {character for character in shown if is_invisible(character)} == set()


# --- what people do with it


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    runs = {"b run": made.answered(), "c run": made.failed(), "a run": made.open_run()}
    return page_of(stored(folder / "runs", runs), folder / "report.html")


KEYS: Final = "[...document.querySelectorAll('tbody tr:not(.details) .key')].map(each => each.textContent)"


def test_a_click_on_a_column_sorts_and_another_turns_it_around_with_the_unfolded_run(desk: Page, plain: Path) -> None:
    desk.load(plain)
    desk.run("document.querySelector('tr[data-run=\"1\"] .key > button').click()")
    of_unfolded = desk.run("document.querySelector('tr[data-run=\"1\"] .key').textContent")
    heading = "document.querySelector('thead th:nth-child({}) > button').click()"
    desk.run(heading.format(1))
    assert desk.run(KEYS) == ["a run", "b run", "c run"]
    assert desk.run("document.querySelector('thead th').getAttribute('aria-sort')") == "ascending"
    assert desk.run("document.getElementById('said').textContent") == "sorted by Run, ascending"
    desk.run(heading.format(1))
    assert desk.run(KEYS) == ["c run", "b run", "a run"]
    desk.run(heading.format(4))
    # 202 s, 4 s and 3 s: as numbers and not as texts.
    assert desk.run(KEYS) == ["a run", "c run", "b run"]
    assert desk.run("document.querySelectorAll('[aria-sort]').length") == 1
    before = "document.querySelector('.details').previousElementSibling.querySelector('.key').textContent"
    assert desk.run(before) == of_unfolded


def test_a_run_is_unfolded_and_folded_with_the_keyboard(desk: Page, plain: Path) -> None:
    desk.load(plain)
    button = "[...document.querySelectorAll('tbody .key > button')].find(each => each.textContent === 'b run')"
    desk.run(f"{button}.focus()")
    desk.press("Enter", 13)
    assert desk.run(f"{button}.getAttribute('aria-expanded')") == "true"
    steps = desk.run("[...document.querySelectorAll('.details details > summary')].map(each => each.textContent)")
    assert steps[0] == "Parameters"
    assert steps[1].startswith("Step 0: [tool]")
    assert steps[2] == "Step 1: final answer"
    times = desk.run("[...document.querySelectorAll('.timeline li')].map(each => each.textContent)")
    assert times == [
        "step 0model 2.00 s, action 1.50 s, rest 1.50 s",
        "step 1model 1.00 s, action 0 ms, rest 0 ms",
    ]
    bars = desk.run("[...document.querySelector('.timeline svg').children].map(each => each.getAttribute('width'))")
    assert bars == ["40%", "30%", "30%"]
    pauses = desk.run("[...document.querySelectorAll('.pause')].map(each => each.textContent)")
    assert pauses == [
        "Cancelled at 2026-01-02T03:00:02.000000+00:00; went on 10 s later.",
        "Interrupted; the model call was made again, attempt 3, 8.00 s later.",
        "Nothing was recorded for 2 min 56 s: the run may have been resumed here.",
    ]
    desk.press("Space", 32)
    assert desk.run(f"{button}.getAttribute('aria-expanded')") == "false"
    assert desk.run("document.querySelector('.details').hidden") is True
    desk.press("Enter", 13)
    assert desk.run("document.querySelectorAll('.details').length") == 1


def test_two_runs_chosen_are_shown_side_by_side_with_what_differs(desk: Page, tmp_path: Path) -> None:
    other = [*made.answered()]
    other[8] = made.step(8, 24, dataclasses.replace(made.acted(0), observation="begins alike, ends otherwise"))
    runs = {"one": made.answered(), "two": other, "three": made.failed()}
    desk.load(page_of(stored(tmp_path / "runs", runs), tmp_path / "report.html"))
    box = "[...document.querySelectorAll('tbody input')].find(each => each.ariaLabel === 'compare {}').click()"
    assert desk.run("document.getElementById('compare').disabled") is True
    for name in ("three", "one", "two"):
        desk.run(box.format(name))
    # The third choice takes the place of the first.
    assert desk.run("document.querySelectorAll('tbody input:checked').length") == 2
    desk.run("document.getElementById('compare').click()")
    headings = desk.run(
        "[...document.querySelectorAll('#comparison h2, #comparison h3')].map(each => each.textContent)"
    )
    assert headings == [
        "A: one and B: two",
        "The runs",
        "All parameters are equal.",
        "1 step differs",
        "Step 0, the first that differs",
    ]
    cells = desk.run("[...document.querySelectorAll('#comparison .sides pre')].map(each => each.textContent)")
    assert cells[1] == "begins alike, ends otherwise"
    marks = desk.run("[...document.querySelectorAll('#comparison mark')].map(each => each.textContent)")
    assert marks[1] == "begins alike, ends otherwise"
    assert desk.run("document.activeElement.id") == "comparison"


def test_a_step_that_one_of_the_runs_lacks_is_told_as_missing_there(desk: Page, tmp_path: Path) -> None:
    runs = {"a": made.answered(), "b": made.answered()[:9]}
    desk.load(page_of(stored(tmp_path / "runs", runs), tmp_path / "report.html"))
    desk.run(COMPARE_FIRST_TWO)
    labels = desk.run("[...document.querySelectorAll('#comparison h4')].map(each => each.textContent)")
    assert labels[-2:] == ["A: no reply", "B: reply"]


def test_a_very_long_text_is_cut_between_two_characters_until_it_is_asked_for(desk: Page, tmp_path: Path) -> None:
    long = "x" * 19_999 + "\U0001f469" * 2000
    records = made.answered()
    records[8] = made.step(8, 24, dataclasses.replace(made.acted(0), observation=long))
    desk.load(page_of(stored(tmp_path / "runs", {"k": records}), tmp_path / "report.html"))
    desk.run(UNFOLD_ALL)
    text = "[...document.querySelectorAll('pre')].find(each => each.textContent.startsWith('xxx')).textContent"
    assert desk.run(text) == "x" * 19_999 + " show all 23,999 characters"
    desk.run(OPEN_ALL)
    assert desk.run(text) == long


def test_what_is_marked_as_different_begins_and_ends_between_two_characters(desk: Page, tmp_path: Path) -> None:
    # The first pair shares its first unit, the second pair its second one.
    texts = ("begin \U0001f469 middle \U0001f469 end", "begin \U0001f468 middle \U0001f069 end")
    runs = {}
    for name, observation in zip("ab", texts, strict=True):
        records = made.answered()
        records[8] = made.step(8, 24, dataclasses.replace(made.acted(0), observation=observation))
        runs[name] = records
    desk.load(page_of(stored(tmp_path / "runs", runs), tmp_path / "report.html"))
    desk.run(COMPARE_FIRST_TWO)
    marks = desk.run("[...document.querySelectorAll('#comparison mark')].map(each => each.textContent)")
    # Of two runs that began together, the one of the later name is listed first.
    assert marks == ["\U0001f468 middle \U0001f069", "\U0001f469 middle \U0001f469"]
    assert desk.run("document.querySelectorAll('#comparison .code').length") == 0


def test_only_the_runs_searched_for_are_shown(desk: Page, plain: Path) -> None:
    desk.load(plain)
    desk.run(
        "(() => { const box = document.querySelector('input[type=search]'); box.value = 'LLM_error';"
        "box.dispatchEvent(new Event('input')); })()"
    )
    assert desk.run("[...document.querySelectorAll('tbody tr')].filter(each => !each.hidden).length") == 1
    assert desk.run("document.getElementById('said').textContent") == "1 run shown"


def test_without_javascript_the_table_and_the_charts_can_be_read(desk: Page, plain: Path) -> None:
    desk.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        desk.load(plain)
        nodes = desk.command("Accessibility.getFullAXTree")["nodes"]
    finally:
        desk.command("Emulation.setScriptExecutionDisabled", value=False)
    said = [(node.get("role", {}).get("value"), node.get("name", {}).get("value")) for node in nodes]
    assert ("rowheader", "b run") in said
    # The place after the underscore is one where the line may break.
    assert ("cell", "llm_ error") in said
    assert ("columnheader", "Outcome") in said
    (chart,) = [name for _, name in said if name and name.startswith("Why runs stopped: ")]
    assert sorted(chart.partition(": ")[2].split(", ")) == ["agent_finished 1", "llm_error 1", "unfinished 1"]
    assert any(name and "need JavaScript" in name for _, name in said)
    assert not [name for role, name in said if role == "button"]


def test_a_screen_reader_finds_a_named_control_for_everything_that_can_be_done(desk: Page, plain: Path) -> None:
    desk.load(plain)
    nodes = desk.command("Accessibility.getFullAXTree")["nodes"]
    controls = [
        (node["role"]["value"], node["name"]["value"])
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in ("button", "checkbox", "searchbox")
    ]
    assert all(name for _, name in controls)
    assert ("searchbox", "Show runs with") in controls
    assert ("button", "Steps") in controls
    assert ("button", "a run") in controls
    assert ("checkbox", "compare a run") in controls


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_needs_no_sideways_scrolling_whatever_is_unfolded(width: int, desk: Page, hostile: Path) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    desk.command("Emulation.setDeviceMetricsOverride", **metrics)
    desk.load(hostile)
    for script in (UNFOLD_ALL, COMPARE_FIRST_TWO, OPEN_ALL):
        desk.run(script)
        assert desk.run("document.documentElement.scrollWidth") <= width


CONTRASTS: Final = """
(() => {
  const rgb = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = text => rgb(text).map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (color !== 'rgba(0, 0, 0, 0)') return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = {};
  for (const element of document.querySelectorAll('main *')) {
    const written = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!written || element.localName === 'noscript' || element.disabled) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(element.localName === 'text' ? style.fill : style.color), light(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const name = `${element.localName}.${element.className.baseVal ?? element.className}`;
    found[name] = Math.min(found[name] ?? 99, contrast);
  }
  return [getComputedStyle(document.body).backgroundColor, found];
})()
"""


@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 21, 26)")])
def test_all_text_has_contrast_in_light_and_in_dark(scheme: str, paper: str, desk: Page, hostile: Path) -> None:
    desk.command("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
    desk.load(hostile)
    for script in (UNFOLD_ALL, COMPARE_FIRST_TWO, OPEN_ALL):
        desk.run(script)
    background, contrasts = desk.run(CONTRASTS)
    assert background == paper
    assert len(contrasts) > 10
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}


def test_it_can_be_looked_at(desk: Page, plain: Path, tmp_path: Path) -> None:
    """A picture is drawn, with something on it: as a file for whoever wants to see it."""
    desk.load(plain)
    desk.run(UNFOLD_ALL)
    picture = base64.b64decode(desk.command("Page.captureScreenshot", format="png")["data"])
    (tmp_path / "report.png").write_bytes(picture)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


@pytest.mark.slow
def test_a_thousand_runs_of_twenty_steps_can_be_sorted_searched_and_unfolded(desk: Page, tmp_path: Path) -> None:
    """80 MB of page."""
    page = tmp_path / "report.html"
    rows, blocks = [], []
    for number in range(1000):
        row, trajectory = long_run(number)
        rows.append(row)
        blocks.append(data_block(number, trajectory))
    page.write_text("".join(document("a thousand", "made here", rows, blocks)), "utf-8")
    desk.load(page)
    assert desk.run("document.querySelectorAll('tbody tr').length") == 1000
    desk.run("document.querySelector('thead th > button').click()")
    assert desk.run(KEYS)[:2] == ["run 0000", "run 0001"]
    desk.run("document.querySelector('tr[data-run=\"777\"] .key > button').click()")
    assert desk.run("document.querySelectorAll('.details details').length") == 1 + 20
    assert desk.run("document.querySelectorAll('.timeline li').length") == 20
    desk.run(COMPARE_FIRST_TWO)
    assert desk.run("document.querySelector('#comparison h3:last-of-type').textContent") == "Step 19"
    assert desk.complaints() == []


def long_run(number: int) -> tuple[Row, dict[str, JSONValue]]:
    """A run of 20 steps with about 4,000 characters each."""
    records: list[Record] = [made.start()]
    for index in range(20):
        at = 1 + 4 * index
        text = f"run {number} looks around in <step> {index}.\n" * 50
        reply = ModelReply(call_id=None, text=text, reasoning=None)
        row = made.ended(index, raw=text, parse_ok=False, parse_error=text)
        records += [
            made.intent(at - index, at, index, EffectKind.MODEL_CALL),
            made.result(at - index + 1, at + 1, index, reply=reply),
            made.step(at - index + 2, at + 2, row),
        ]
    log = RunLog.from_records(records)
    summary = RunSummary(
        key=RunKey(f"run {number:04}"),
        state=RunState.UNFINISHED,
        started_at=None,
        last_record_at=None,
        steps=None,
        stop_reason=None,
    )
    return described(summary, log, None)
