"""A model without a model: a script that reads the observations and answers as an analyst would.

It needs no network, and its replies are a pure function of the prompt: asked again after a crash, it says the
same. Real models do not, and need not: the log keeps what they said.
"""

from __future__ import annotations

import difflib
import itertools
import json
import string
from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias

from polyloop import ChatMessage, JSONValue, ModelCall, ModelReply

Script: TypeAlias = Generator[str, str, None]
"""Yields replies, and is sent what the environment answered to each."""


class ScriptedModel:
    """A `ModelPort` that plays a script. It keeps nothing between calls: the prompt holds all that it needs."""

    def __init__(self, *, name: str, script: Callable[[], Script]) -> None:
        self._name = name
        self._script = script

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """The script's name stands for it: give a changed script another one."""
        return {"model": self._name}

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Play the script up to where the prompt ends."""
        script = self._script()
        said = next(script)
        for observation in _observations(call.messages):
            said = script.send(observation)
        return ModelReply(call_id=f"scripted-{call.call_index}", text=said, reasoning=None)


def _observations(messages: tuple[ChatMessage, ...]) -> list[str]:
    """What the environment answered: each user's message that follows one of the model's own."""
    pairs = itertools.pairwise(messages)
    return [after.content for before, after in pairs if before.role == "assistant"]


_RATES = """
select g.name as region, s.month, round(100.0 * sum(f.cents) / s.cents, 1) as refunded_percent
from (select c.region_id, substr(o.ordered_on, 1, 7) as month, sum(l.line_cents) as cents
      from orders o join customers c using (customer_id) join order_lines l using (order_id) group by 1, 2) s
join (select c.region_id, substr(r.refunded_on, 1, 7) as month, r.amount_cents as cents
      from $refunds r join orders o using (order_id) join customers c using (customer_id)) f
  on f.region_id = s.region_id and f.month = s.month
join regions g on g.region_id = s.region_id
group by 1, 2 order by 3 desc
"""
_PLACE = """
from $refunds r join orders o using (order_id) join customers c using (customer_id) join regions g using (region_id)
where g.name = '$region' and substr(r.refunded_on, 1, 7) = '$month'
"""
_REASONS = f"select r.reason, sum(r.amount_cents) as cents {_PLACE} group by 1 order by 2 desc"
_DOUBLED = f"""
select count(*) as bookings, sum((times - 1) * amount_cents) as excess_cents
from (select r.booking_ref, r.amount_cents, count(*) as times {_PLACE} group by 1, 2 having count(*) > 1)
"""  # noqa: S608 - put together from constants


def analyst() -> Script:
    """Finds the refunds that were booked twice, not without mistakes on the way."""
    # A reply that was cut off. It is not repaired: the model is told what is wrong with it.
    yield 'I begin with the tables.\n{"tool": "list_tables", "arguments": {'
    tables = [table["name"] for table in json.loads((yield _call("Once more.", "list_tables")))]

    # A table's name by guess. Bad SQL is a normal observation, and its error says what to mend.
    refunds = "refund"
    observed = yield _call("Where is much refunded?", "run_sql", sql=_filled(_RATES, refunds=refunds))
    if "no such table" in observed:
        (refunds,) = difflib.get_close_matches(refunds, tables, n=1)

    # An argument of the wrong type, which the registry's validation refuses before anything is run.
    rates = _filled(_RATES, refunds=refunds)
    observed = yield _call(f"The table is {refunds}.", "run_sql", sql=rates, max_rows="five")
    if "max_rows" in observed:
        observed = yield _call("It wants a number.", "run_sql", sql=rates, max_rows=5)

    for region, month, percent in _rows(observed):
        place = {"refunds": refunds, "region": str(region), "month": str(month)}
        said = f"{region} refunded {percent} % in {month}. Why?"
        reasons = _rows((yield _call(said, "run_sql", sql=_filled(_REASONS, **place))))
        if _explained(reasons):
            continue
        said = "No reason stands out. Are there bookings that stand in the books twice?"
        ((bookings, excess),) = _rows((yield _call(said, "run_sql", sql=_filled(_DOUBLED, **place))))
        if bookings:
            finding: dict[str, JSONValue] = {"region": region, "month": month}
            # It means well, but mending the books was not its task: this run was not given that tool.
            yield _call(f"{bookings} of them. I cancel them at once.", "cancel_refunds", **finding)
            cause = f"{bookings} refunds were booked twice"
            yield _call("Then I only report it.", "submit", **finding, excess_cents=excess, cause=cause)


def _explained(reasons: list[list[JSONValue]]) -> bool:
    """Whether one reason makes up more than half of what was refunded."""
    cents = [each[1] for each in reasons if isinstance(each[1], int)]
    return bool(cents) and 2 * max(cents) > sum(cents)


def _call(said: str, tool: str, **arguments: JSONValue) -> str:
    return f"{said}\n{json.dumps({'tool': tool, 'arguments': arguments})}"


def _rows(observed: str) -> list[list[JSONValue]]:
    rows: list[list[JSONValue]] = json.loads(observed)["rows"]
    return rows


def _filled(sql: str, **names: str) -> str:
    return " ".join(string.Template(sql).substitute(names).split())
