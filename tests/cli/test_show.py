"""`polyloop show`: the trajectory, what happened to it, and nothing that a terminal obeys."""

from __future__ import annotations

import asyncio
import dataclasses
import unicodedata

import pytest

from polyloop.cli._text import duration, lines, one_line
from polyloop.types import ModelReply, RunKey
from tests.builders import definition, request
from tests.cli.logs import HOSTILE, eventful, hostile, sound, timed
from tests.cli.places import Place, printed, refusal
from tests.contract.records import model_intent, replied, started


def test_a_real_run_is_told_step_by_step(anywhere: Place) -> None:
    async def run() -> None:
        async with anywhere.store() as store:
            agent = definition(("act: look around", "what?", "final: 42"), store=store)
            await agent.run(dataclasses.replace(request(), key=RunKey("a run")))

    asyncio.run(run())
    told = printed("show", anywhere.url, "a run")
    assert told.startswith("run         a run\nstate       ended: agent_finished\n")
    assert "steps       3 · model calls 3 · executed actions 1 · invalid decisions 1\n" in told
    assert "budget.max_steps = 20" in told
    body = told.partition("---- ")[2]
    places = [
        body.index(text)
        for text in (
            "started by polyloop",
            "step 0 · model call",
            "| act: look around",
            "action (no tool)",
            "| look around",
            "executed after",
            "step 0 done in",
            "step 1 · model call",
            "no valid decision:",
            "step 2 · model call",
            "final answer:",
            "| 42",
            "this ends the run: agent_finished",
            "  ended: agent_finished",
        )
    ]
    assert places == sorted(places)


def test_what_happened_to_a_run_is_said(anywhere: Place) -> None:
    anywhere.fill({"eventful": eventful()})
    told = printed("show", anywhere.url, "eventful")
    for words in (
        "state       unfinished: a model call of step 1 is under way, or was interrupted; it may be repeated",
        "resumed     1 time after a cancellation",
        "repeated effects 1",
        "cut off observations 1,234",
        "(no record for 29 min 59 s)",
        "(no record for 30 min)",
        "---- 2026-03-05 UTC",
        "cancelled\n",
        "the event sink failed to take 2 events",
        "              resumed\n",
        "step 0 · model call · attempt 2: the one before was interrupted",
        "replied after 2.50 s · 12 characters · reasoning 15 characters · call call-7",
        "thinks | Let me see.",
        "not executed after 0.50 s · completed: not known",
        "the history keeps another text than the reply",
        "synthetic: not from the environment, 1,234 more were cut off",
        'model.model = "small"',
    ):
        assert words in told, words


def test_a_clock_that_was_set_back_is_said(on_disk: Place) -> None:
    on_disk.fill({"run": timed((0, started()), (-60, model_intent(0)))})
    assert "(the clock stood 1 min earlier than at the record before)" in printed("show", on_disk.url, "run")


def test_long_texts_are_cut_unless_they_are_wanted_whole(on_disk: Place) -> None:
    text = "\n".join([*(f"line {number}" for number in range(1000)), "x" * 5000])
    reply = ModelReply(call_id=None, text=text, reasoning=None)
    on_disk.fill({"run": timed((0, started()), (1, model_intent(0)), (2, replied(0, reply=reply)))})
    told = printed("show", on_disk.url, "run")
    assert "| line 19\n" in told
    assert "| line 20\n" not in told
    assert "(981 more lines; --full prints all 13,890 characters)" in told
    whole = printed("show", on_disk.url, "run", "--full")
    assert "| line 999\n" in whole
    assert "x" * 5000 in whole
    assert "--full" not in whole


@pytest.mark.parametrize("command", [("show",), ("show", "--full"), ("watch",)])
def test_nothing_that_a_terminal_obeys_is_printed(on_disk: Place, command: tuple[str, ...]) -> None:
    key = "h" + HOSTILE.replace("\x00", "").replace("\ud800", "")
    on_disk.fill({key: hostile()})
    told = printed(command[0], on_disk.url, key, *command[1:])
    assert {char for char in told if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} == {"\n"}
    assert told.count("\\x1b]0;owned\\x07") >= 6
    # A text that looks like a line of the heading stands behind a bar.
    assert "\nrun         forged" not in told
    assert "| run         forged" in told
    assert one_line(key) in printed("runs", on_disk.url)


def test_text_keeps_what_is_no_danger() -> None:
    kept = "Zürich 東京\u3000👩\u200d🔬 \u0645\u06cc\u200c\u062e a\xa0b ✓"
    assert one_line(kept) == kept
    assert lines(f"{kept}\r\nb\tc\n") == [kept, "b   c", ""]
    assert lines("a\rb\vc\x85d\u2028e") == ["a\\rb\\x0bc\\x85d\\u2028e"]


def test_of_all_characters_none_that_is_no_text_gets_through() -> None:
    shown = {chr(code): one_line(chr(code)) for code in range(0x110000)}
    unprintable = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    through = {char for char, text in shown.items() if text == char and unicodedata.category(char) in unprintable}
    assert through == {"\u200c", "\u200d"}
    assert all(text.isascii() for char, text in shown.items() if text != char)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.00 s"),
        (9.994, "9.99 s"),
        (10, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (3 * 86400 + 4 * 3600 + 59, "3 d 4 h"),
        (-2, "-2.00 s"),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_run_that_is_not_there_is_refused(anywhere: Place) -> None:
    anywhere.fill({"a": sound(1)})
    for command in (("show",), ("watch",), ("export", "--format", "atif"), ("verify",)):
        assert "the store holds no run 'b'" in refusal(command[0], anywhere.url, "b", *command[1:])
