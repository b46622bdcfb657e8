"""An event sink that prints a run as it grows."""

from __future__ import annotations

import os
import sys
import textwrap

from polyloop import (
    ActionEnded,
    ActionOutcome,
    ActionStatus,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunClosed,
    RunOpened,
    Step,
    StepEnded,
)

_WIDTH = 110
_LINES = 4
_BOLD, _DIM, _YELLOW, _END = "\033[1m", "\033[2m", "\033[33m", "\033[0m"


class Trace:
    """Prints what the model says, what comes of it, and which texts no environment wrote. One run at a time.

    Args:
        colour: Whether the output is a terminal that shows colours.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    async def emit(self, event: Event, /) -> None:
        """Print one event; those that it does not know are passed over."""
        match event:
            case RunOpened(resumed=resumed, steps=steps):
                self._say(
                    _BOLD, "opened", f"resumed from the log, which holds {steps} steps" if resumed else "a new run"
                )
            case ModelCallStarted(step_idx=index, attempt=attempt):
                again = " again: the call was cut short, and may be repeated" if attempt > 1 else ""
                self._say(_BOLD, f"step {index}", f"asking the model{again}")
            case ModelCallEnded(reply=reply, error=error):
                self._say(_BOLD, "says", reply.text) if reply else self._say(_YELLOW, "failed", error or "")
            case ActionEnded(outcome=outcome, error=error):
                self._action(outcome, error)
            case StepEnded(step=step):
                self._step(step)
            case RunClosed(stop_reason=reason):
                self._say(_BOLD, "stopped", reason)
            case _:
                pass

    def _action(self, outcome: ActionOutcome | None, error: str | None) -> None:
        if outcome is None:
            self._say(_YELLOW, "failed", error or "")
        elif outcome.status is ActionStatus.EXECUTED:
            self._say(_DIM, "executed", outcome.observation)
        else:
            self._say(_YELLOW, outcome.status.replace("_", " "), outcome.observation)

    def _step(self, step: Step) -> None:
        if step.parse_error is not None:
            self._say(_YELLOW, "invalid", f"nothing was run. The model reads: {step.parse_error}")
        elif step.observation_is_synthetic:
            self._say(_YELLOW, "synthetic", f"the model reads instead: {step.observation}")

    def _say(self, style: str, label: str, text: str) -> None:
        block = "\n".join(textwrap.wrap(shown(text), _WIDTH, max_lines=_LINES, placeholder=" [...]"))
        line = f"{label:>14}  {textwrap.indent(block, ' ' * 16).strip()}"
        # Flushed, since the quickstart's processes do not live long.
        print(f"{style}{line}{_END}" if self._colour else line, flush=True)


def shown(text: str) -> str:
    """A text as one line, with everything that could steer a terminal made visible."""
    line = " ".join(text[: _WIDTH * _LINES * 2].split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def wants_colour() -> bool:
    """Whether standard output is a terminal whose user has not said `NO_COLOR`."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
