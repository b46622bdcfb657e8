"""An agent that finds out by SQL what is wrong in a shop's books, is killed twice on its way, and goes on.

    python examples/quickstart.py                                          a scripted model, no network
    python examples/quickstart.py --base-url http://localhost:8000/v1 --model NAME         a real one
    python examples/quickstart.py --kill query                             a crash that nobody can undo
    python examples/quickstart.py --verify                                 checks the last run's claims again

The parent process makes up the data and starts a child, which is the agent. The child kills itself (`SIGKILL`: no
clean-up, nothing is flushed), and a fresh one resumes from the log, until the run has ended. Then the parent
checks what it claims, with a ledger that the tools keep outside the run's log. It exits with 1 if a claim is not so.

Read `build` first: it is the whole assembly. `one_process` is what an application does.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# So that the other examples are found when this file is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import orders, scripted, sql_tools
from examples.chat import ChatModel
from examples.parsers import JsonToolCallParser
from examples.proof import KILLS, Claims, KilledAfterQuery, KilledInCall, KilledInQuery
from examples.trace import Trace, wants_colour
from polyloop import (
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    EventSink,
    JSONValue,
    ModelPort,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunStore,
    StopReason,
    ToolDocsStyle,
)
from polyloop.stores.jsonl import JsonlRunStore

QUESTION = (
    "The books of this year's orders have a fault: in one region, in one month, refunds were booked twice. "
    "A booking is known by its booking_ref; a refund may rightly come in several bookings. "
    "Which region, which month (YYYY-MM), and by how many cents in all do the books show too much refunded?"
)
RULES = (
    "You are an analyst. You look into a SQLite database with the tools below, and submit what you find. "
    "You report faults; mending the books (cancel_refunds) is the accounts team's."
)
GRANTED = ("list_tables", "run_sql", "submit")
"""The tools that the run is given. The parser knows of `cancel_refunds` too, as the prompt does: a call of it is
understood, and then refused by the run's executor."""


class Options(NamedTuple):
    """What the command line says."""

    data_dir: Path
    base_url: str | None
    model: str | None
    sampling: Mapping[str, JSONValue]
    kills: tuple[str, ...]
    key: RunKey | None
    process: int | None
    verify: bool

    @property
    def kill(self) -> str | None:
        """What kills this process; None for one that is left alone."""
        kills = self.kills[(self.process or 1) - 1 :]
        return kills[0] if kills else None

    @property
    def is_scripted(self) -> bool:
        """Whether the model is the script: then everything is known beforehand."""
        return self.base_url is None

    @property
    def database(self) -> Path:
        """The shop's books."""
        return self.data_dir / "orders.sqlite3"

    @property
    def ledger(self) -> sql_tools.Ledger:
        """What was really done, noted by the tools themselves."""
        path = self.data_dir / "ledger.jsonl"
        return KilledInQuery(path) if self.kill == "query" else sql_tools.Ledger(path)

    def remember(self, key: RunKey) -> None:
        """Note what was asked for, so that it can be checked later."""
        asked = self._replace(key=key)._asdict() | {"data_dir": None}
        (self.data_dir / "last-run.json").write_text(json.dumps(asked), "ascii")

    def remembered(self) -> Options | None:
        """What was asked for last; None if nothing was."""
        path = self.data_dir / "last-run.json"
        if not path.exists():
            return None
        return Options(**json.loads(path.read_text("ascii")))._replace(data_dir=self.data_dir)

    @property
    def store(self) -> JsonlRunStore:
        """The store of the runs' logs."""
        return JsonlRunStore(self.data_dir / "runs")


# ------------------------------------------------------------------------------------------- The assembly


def build(options: Options, store: RunStore, key: RunKey) -> tuple[AgentDefinition, RunRequest]:
    """The agent and the run: everything that influences it is said here."""
    database = sql_tools.ReadOnlyDatabase(
        options.database,
        max_rows=sql_tools.MAX_ROWS,
        max_cell_bytes=sql_tools.MAX_CELL_BYTES,
        time_limit_s=sql_tools.TIME_LIMIT_S,
    )
    catalogue = sql_tools.catalogue(database, options.ledger)
    parser = JsonToolCallParser(
        tools=catalogue,
        tool_key="tool",
        arguments_key="arguments",
        answer_key="final_answer",
        comment_keys=("thought",),
        blank_history_text="(no text)",
    )
    definition = AgentDefinition(
        model=_model(options),
        parser=parser,
        store=store,
        events=_sink(options),
        synthetic_observations={
            ActionStatus.NOT_EXECUTED: "Not executed: this run was not given that tool. Use the tools listed above.",
            ActionStatus.ENV_ERROR: "The database can serve no more.",
        },
        observation_template="{observation}",
    )
    tools = catalogue.subset(GRANTED)
    request = RunRequest(
        key=key,
        budget=Budget(
            max_steps=40, max_executed_actions=30, max_prompt_chars=200_000, max_consecutive_parse_failures=4
        ),
        executor=tools.executor(max_observation_chars=8_000),
        tools=tools,
        run_segments=(ChatMessage(role="system", content=f"{RULES}\n{parser.instructions}"),),
        item_segments=(ChatMessage(role="user", content=QUESTION),),
        skills=(),
        model_binding={},
        # A model call that a crash interrupts may be made again; it costs a little, and nothing else comes of it.
        model_call_replay=ReplayPolicy.SAFE,
        tool_docs_style=ToolDocsStyle.JSON_SCHEMA,
        finalize_timeout_s=5.0,
    )
    return definition, request


async def one_process(options: Options) -> None:
    """The agent's life in one process: a new run in the first, the rest of it in the others."""
    assert options.key is not None
    async with options.store as store:
        definition, request = build(options, store, options.key)
        await (definition.run(request) if options.process == 1 else definition.resume(request))


def _model(options: Options) -> ModelPort:
    model: ModelPort = scripted.ScriptedModel(name="analyst-1", script=scripted.analyst)
    if options.base_url is not None and options.model is not None:
        model = ChatModel(
            base_url=options.base_url,
            model=options.model,
            sampling=options.sampling,
            api_key=os.environ.get("OPENAI_API_KEY") or None,
            timeout_s=120.0,
        )
    return KilledInCall(model) if options.kill == "model" else model


def _sink(options: Options) -> EventSink:
    trace = Trace(colour=wants_colour())
    return KilledAfterQuery(trace) if options.kill == "result" else trace


# ------------------------------------------------------------------------------------------- The parent


def demo(options: Options) -> int:
    """Make up the data, run the agent through its deaths, check the claims. Returns the exit code."""
    began = time.monotonic()
    options.data_dir.mkdir(parents=True, exist_ok=True)
    finding = orders.build(options.database)
    key = RunKey(f"quickstart-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S.%f}-{os.getpid()}")
    options.remember(key)
    print(f"Data, log and ledger: {options.data_dir}\nRun: {key}\nQuestion: {QUESTION}")
    exits = list(_processes(options, key))
    print("\nWhat is so:")
    claims = Claims()
    claims.processes(exits, expected_kills=len(options.kills) if options.is_scripted else None)
    if exits[-1] == 0:
        asyncio.run(_check(options, key, finding, claims))
    print(f"Took {time.monotonic() - began:.1f} s.")
    return 1 if claims.failed else 0


def _processes(options: Options, key: RunKey) -> Iterator[int]:
    """Start one process after the other, until one is not killed. Yields their exit codes."""
    for number in range(1, len(options.kills) + 2):
        print(f"\nProcess {number}", flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--key", key, "--process", str(number)]
        code = subprocess.run(command, check=False).returncode  # noqa: S603 - this very file
        yield code
        if code != -signal.SIGKILL:
            return


async def _check(options: Options, key: RunKey, finding: orders.Finding, claims: Claims) -> None:
    """Compare the log, the ledger and the truth."""
    entries = options.ledger.entries(key)
    async with options.store as store:
        definition, request = build(options._replace(kills=()), store, key)
        log = await store.read_log(key)
        result = await definition.resume(request)
        undisturbed = await store.read_log(key) == log and options.ledger.entries(key) == entries
    claims.end(result, expected=_expected_ends(options))
    claims.finding(result, finding, must_be_right=options.is_scripted)
    claims.ledger(entries, log, must_query=options.is_scripted)
    claims.check("asked once more, resume() returned the stored result and did nothing", holds=undisturbed)


def _expected_ends(options: Options) -> frozenset[StopReason]:
    """A script comes to one end; a real model may come to any that is not a failure around it."""
    if options.is_scripted:
        return frozenset((StopReason.RESUME_STATE_UNKNOWN if "query" in options.kills else StopReason.TASK_COMPLETED,))
    failures = {StopReason.LLM_ERROR, StopReason.ENV_ERROR}
    return frozenset(StopReason) - (
        failures if "query" in options.kills else failures | {StopReason.RESUME_STATE_UNKNOWN}
    )


def verify(options: Options) -> int:
    """Check the claims about the last run again. Returns the exit code."""
    last = options.remembered()
    if last is None or last.key is None:
        print(f"There is no run in {options.data_dir}; leave out --verify to make one.")
        return 2
    claims = Claims()
    asyncio.run(_check(last, last.key, orders.build(options.database), claims))
    return 1 if claims.failed else 0


def _sampling(text: str) -> dict[str, JSONValue]:
    sampling = json.loads(text)
    if not isinstance(sampling, dict):
        raise ValueError("must be a JSON object")  # noqa: TRY004 - what argparse turns into its message
    return sampling


def _options() -> Options:
    parser = argparse.ArgumentParser(description="An agent that is killed on its way, and goes on.")
    parser.add_argument("--data-dir", type=Path, default=Path("demo-data"), help="where everything is kept")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint; its key is taken from OPENAI_API_KEY")
    parser.add_argument("--model", help="the model's name there")
    parser.add_argument("--sampling", type=_sampling, default={}, help="more for the endpoint: '{\"temperature\": 0}'")
    parser.add_argument("--kill", action="append", choices=(*KILLS, "none"), help="default: result, then model")
    parser.add_argument("--verify", action="store_true", help="only check the claims about the last run again")
    parser.add_argument("--key", type=RunKey, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    said = vars(parser.parse_args())
    if (said["base_url"] is None) is not (said["model"] is None):
        parser.error("--base-url and --model go together")
    kills = tuple(kill for kill in said.pop("kill") or ("result", "model") if kill != "none")
    return Options(kills=kills, **{**said, "data_dir": said["data_dir"].absolute()})


def main() -> int:
    """Be the parent, or one of its children. Returns the exit code."""
    options = _options()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if options.process is not None:
        asyncio.run(one_process(options))
        return 0
    return verify(options) if options.verify else demo(options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
