"""The rollouts of the dissect-like experiment: what the model says in each, and how far each may go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from tests.consumers.harness import Ledger, Limits, Message, Response

ROOMY: Final = Limits()

Said: TypeAlias = str | Response | Exception


def python(code: str) -> str:
    """A reply that acts; what follows the block does not enter the history."""
    return f"I run this.\n```python\n{code}\n```\nNow I wait."


def answer(n: int) -> str:
    """A reply that reaches the goal."""
    return python(f"print('so it is', answer := {n})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of rollout. Each rollout of a kind has a number of its own, from which its texts and its goal are made."""

    name: str
    stop_reason: str
    steps: int
    says: Callable[[int], Sequence[Said]]
    limits: Limits = ROOMY

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Item:
    """One rollout."""

    kind: Kind
    number: int

    @property
    def item_id(self) -> str:
        return f"{self.kind.name}/{self.number}"

    @property
    def goal(self) -> int:
        return self.number

    @property
    def attempt_idx(self) -> int:
        return self.number % 3

    @property
    def head(self) -> list[Message]:
        """The prompt that every call of this rollout begins with."""
        return [
            {"role": "system", "content": "You act by code."},
            {"role": "user", "content": f"You know how to reach {self.goal}."},
            {"role": "user", "content": f"Item {self.item_id}: reach {self.goal}."},
        ]

    @property
    def dimensions(self) -> Mapping[str, Any]:
        """What the ledger keeps of each call."""
        return {
            "ledger": Ledger.MAIN,
            "round_idx": self.number % 5,
            "phase": "train",
            "item_id": self.item_id,
            "attempt_idx": self.attempt_idx,
        }

    def reply(self, turn: int, messages: Sequence[Message]) -> Response | Exception:
        """What the model says. It quotes what it saw last, so that what belongs to another rollout would show."""
        said = self.kind.says(self.number)[turn]
        if isinstance(said, Exception):
            return said
        response = said if isinstance(said, Response) else Response(f"{self.item_id}#{turn}", said)
        text = response.text.replace("<seen>", repr(messages[-1]["content"])).replace("<item>", self.item_id)
        return dataclasses.replace(response, text=text)


_KILL = "import os; os.kill(os.getpid(), 9)"
# The session dies while it is asked whether it is done: the action itself has its observation by then.
_TRAP = (
    "import os\nclass Trap:\n    def __eq__(self, other):\n        os._exit(3)\nanswer = Trap()\nprint('set by <item>')"
)
_STRANGE = "print('\\0 \\u2028 \\U0001f600 {observation} {0} ```')"
_LOOK, _PROSE, _OPEN = python("print('<item> looks at', <seen>)"), "I would rather talk.", "```python\nprint(1)"
_SQL, _TWO = "```sql\nselect 1\n```", python("print(1)") + python("print(2)")

KINDS: Final = (
    Kind(
        name="completes early",
        stop_reason="task_completed",
        steps=3,
        says=lambda n: (python(f"x = {n}; print(x, '<item>')"), python("print(<seen>, x)"), python("answer = x")),
    ),
    Kind(
        name="completes on exactly its last step",
        stop_reason="task_completed",
        steps=3,
        says=lambda n: (_LOOK, _LOOK, answer(n)),
        limits=Limits(max_steps=3, max_actions=3),
    ),
    Kind(
        name="completes with its last action",
        stop_reason="task_completed",
        steps=4,
        says=lambda n: (_LOOK, _PROSE, _LOOK, answer(n)),
        limits=Limits(max_actions=3),
    ),
    Kind(
        name="spends its steps",
        stop_reason="step_budget",
        steps=4,
        says=lambda _: [_LOOK] * 4,
        limits=Limits(max_steps=4),
    ),
    Kind(
        name="spends its steps on unreadable replies too",
        stop_reason="step_budget",
        steps=5,
        says=lambda _: (_PROSE, _LOOK, _SQL, _LOOK, _OPEN),
        limits=Limits(max_steps=5, max_actions=3),
    ),
    Kind(
        name="spends its actions",
        stop_reason="action_budget",
        steps=3,
        says=lambda _: (_LOOK, _PROSE, _LOOK),
        limits=Limits(max_steps=9, max_actions=2),
    ),
    Kind(
        name="spends both budgets at once",
        stop_reason="step_budget",
        steps=3,
        says=lambda _: (_LOOK, _LOOK, _LOOK),
        limits=Limits(max_steps=3, max_actions=3),
    ),
    Kind(
        name="cannot be understood",
        stop_reason="parse_failed_repeatedly",
        steps=5,
        says=lambda _: (_TWO, _LOOK, "", _OPEN, _SQL),
    ),
    Kind(
        name="cannot be understood on its last step",
        stop_reason="parse_failed_repeatedly",
        steps=2,
        says=lambda _: (_PROSE, _PROSE),
        limits=Limits(max_steps=2, max_failures=2),
    ),
    Kind(
        name="is understood just in time",
        stop_reason="task_completed",
        steps=8,
        says=lambda n: (_PROSE, _TWO, _LOOK, "", _OPEN, _LOOK, _SQL, answer(n)),
    ),
    Kind(
        name="outgrows its prompt",
        stop_reason="context_overflow",
        steps=3,
        says=lambda n: (_LOOK, python(f"print('long ' * {50 + n % 9})"), _LOOK),
        limits=Limits(max_prompt_chars=700),
    ),
    Kind(
        name="has too long a prompt to begin with",
        stop_reason="context_overflow",
        steps=0,
        says=lambda _: (),
        limits=Limits(max_prompt_chars=9),
    ),
    Kind(name="has no model", stop_reason="llm_error", steps=1, says=lambda _: (ConnectionError("closed"),)),
    Kind(
        name="loses its model",
        stop_reason="llm_error",
        steps=3,
        says=lambda _: (_LOOK, _PROSE, TimeoutError("no answer")),
    ),
    Kind(
        name="raises and goes on",
        stop_reason="task_completed",
        steps=5,
        says=lambda n: (python("1 / 0"), python("exit(7)"), python("def ("), python("print(x)"), answer(n)),
    ),
    Kind(
        name="loses its session",
        stop_reason="env_error",
        steps=2,
        says=lambda _: (_LOOK, python(_KILL)),
    ),
    Kind(
        name="cannot learn whether it is done",
        stop_reason="env_error",
        steps=2,
        says=lambda _: (_LOOK, python(_TRAP)),
    ),
    Kind(
        name="prints too much",
        stop_reason="task_completed",
        steps=3,
        says=lambda n: (python(f"print('<item>' * {100 + n})"), _LOOK, answer(n)),
    ),
    Kind(
        name="thinks aloud, without ids",
        stop_reason="task_completed",
        steps=3,
        says=lambda n: (
            Response("", _LOOK, reasoning="Let me look. " * (n + 1)),
            Response("", "", reasoning="Hm."),
            Response(f"id-{n}", answer(n), reasoning=""),
        ),
    ),
    Kind(
        name="prints strange things",
        stop_reason="task_completed",
        steps=3,
        says=lambda n: (python(_STRANGE), python("print(<seen>)"), answer(n)),
    ),
)

ITEMS: Final = [Item(kind, number) for number in range(10) for kind in KINDS]
"""Two hundred."""

WALK: Final = Kind(
    name="walks",
    stop_reason="task_completed",
    steps=6,
    says=lambda n: (
        python(f"note('<item>#0'); x = {n}; print(x)"),
        python("note('<item>#1'); x = x + 100; print(<seen>, x)"),
        _PROSE,
        python("note('<item>#3'); x = x + 100; print(<seen>, x)"),
        python("note('<item>#4'); print(<seen>, x)"),
        python("note('<item>#5'); answer = x - 200; print(answer)"),
    ),
)
"""What it does hangs together: in a session that lacks a variable it would go another way."""

ENDLESS: Final = dataclasses.replace(
    WALK, name="works for ever", says=lambda n: (*WALK.says(n)[:3], python("while True: note('<item>#3')"))
)

WALKS: Final = [Item(WALK, number) for number in range(12)]
