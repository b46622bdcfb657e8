"""How the quickstart kills its own processes, and how it checks what it claims. No agent needs any of this."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.orders import Finding
from examples.sql_tools import Ledger, LedgerEntry
from examples.trace import shown
from polyloop import (
    ActionEnded,
    ActionStarted,
    ActionStatus,
    Event,
    EventSink,
    JSONValue,
    ModelCall,
    ModelPort,
    ModelReply,
    RunLog,
    RunResult,
    StopReason,
)

KILLS = ("result", "model", "query")
"""What a process can be killed by: its second query's result, its second model call, its second query."""

_SECOND = 2


def die(where: str) -> None:
    """Kill this process as a power cut would: no clean-up, nothing flushed."""
    print(f"{'SIGKILL':>14}  {where}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


class KilledAfterQuery:
    """A sink whose process dies when its second query's result is in the log."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._queries = itertools.count(1)
        self._tool: str | None = None

    async def emit(self, event: Event, /) -> None:
        """Pass the event on, and die or not."""
        await self._sink.emit(event)
        if isinstance(event, ActionStarted):
            self._tool = event.action.tool_name
        elif isinstance(event, ActionEnded) and self._tool == "run_sql" and next(self._queries) == _SECOND:
            die("the query's result is in the log, the next step has not begun")


class KilledInCall:
    """A model whose process dies during its second call: announced in the log, and never answered."""

    def __init__(self, model: ModelPort) -> None:
        self._model = model
        self._calls = itertools.count(1)

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """The model's own: being killed is no parameter of a run."""
        return self._model.params

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Pass the call on, or die."""
        if next(self._calls) == _SECOND:
            die("a model call is under way")
        return await self._model.call(call)


class KilledInQuery(Ledger):
    """A ledger whose process dies when its second query has been noted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._queries = itertools.count(1)

    def note(self, tool: str, what: str) -> None:
        """Note it, and die or not."""
        super().note(tool, what)
        if tool == "run_sql" and next(self._queries) == _SECOND:
            die("a query is under way: nobody can know whether it ran")


class Claims:
    """What the quickstart says of itself."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, text: str, *, holds: bool) -> None:
        """Print a claim, and whether it is so."""
        print(f"  [{'ok' if holds else 'NOT SO'}] {text}")
        self.failed += not holds

    def processes(self, exits: Sequence[int], *, expected_kills: int | None) -> None:
        """The processes were killed as planned. None: by whatever number a real model got to."""
        *killed, last = exits
        self.check(
            f"of {len(exits)} processes {len(killed)} died of SIGKILL, and the last one ended by itself",
            holds=last == 0
            and all(each == -signal.SIGKILL for each in killed)
            and expected_kills in (None, len(killed)),
        )

    def end(self, result: RunResult, *, expected: frozenset[StopReason]) -> None:
        """The run stopped for one of these reasons."""
        why = f" ({shown(result.detail)})" if result.detail else ""
        self.check(
            f"the run stopped after {len(result.steps)} steps with {result.stop_reason}{why}",
            holds=result.stop_reason in expected,
        )

    def finding(self, result: RunResult, truth: Finding, *, must_be_right: bool) -> None:
        """What was submitted is what is wrong in the books."""
        if result.stop_reason is not StopReason.TASK_COMPLETED:
            return
        submitted = json.loads(result.steps[-1].tool_arguments_json or "{}")
        right = Finding(submitted.get("region"), submitted.get("month"), submitted.get("excess_cents")) == truth
        self.check(
            f"the finding is {'right' if right else 'wrong'}: {shown(json.dumps(submitted))}",
            holds=right or not must_be_right,
        )

    def ledger(self, entries: Sequence[LedgerEntry], log: RunLog, *, must_query: bool) -> None:
        """The ledger and the log tell one story, in which nothing happened twice."""
        done = Counter(entry.result_id for entry in entries)
        queries = [entry for entry in entries if entry.tool == "run_sql"]
        twice = [result_id for result_id, times in done.items() if times > 1]
        processes = len({entry.pid for entry in queries})
        self.check(
            f"no query ran twice: the ledger notes {len(queries)}, run by {processes} processes",
            holds=not twice and (bool(queries) or not must_query),
        )
        self.check(
            "the ledger notes what the log announced, and nothing else; what the run was not given was not run",
            holds=set(done) == _announced(log, {entry.tool for entry in entries}),
        )
        repeated = [f"{intent.kind} of step {intent.step_idx}" for intent in log.intents if intent.attempt > 1]
        print(f"  Done again after a kill: {', '.join(repeated) or 'nothing'}")


def _announced(log: RunLog, noted_tools: set[str]) -> set[str]:
    """The actions that must be in the ledger: announced in the log, and not refused."""
    refused = {
        result.result_id
        for result in log.results
        if result.outcome is not None and result.outcome.status is not ActionStatus.EXECUTED
    }
    noted = {each.result_id for each in log.intents if each.action is not None and each.action.tool_name in noted_tools}
    return noted - refused
