"""A real language model, and a really small one, at the quickstart's task; its processes are killed at any moment.

    make demo-llm                                                       downloads 272 MB the first time
    .venv/bin/python examples/demo_llm.py --base-url http://localhost:8000/v1 --model NAME         another model

The model has 270 million parameters and has never been taught to follow instructions: it mostly fails the task, each
time in a way of its own. That is what it is for. However it fails, and whenever its process is killed (`SIGKILL`, at
a random event or a random time), each run must end with one of the ten stop reasons and a complete log. Each run has
a seed, and is resumed by a fresh process until one comes to the end. The demo exits with 1 if a claim is not so.

The agent is the quickstart's, on `polyloop.adapters.openai`: `build` says what is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

# So that the other examples are found when this file is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openai import AsyncOpenAI

from examples import orders, quickstart
from examples.proof import Claims, die
from polyloop import (
    AgentDefinition,
    Budget,
    ChatMessage,
    Event,
    EventSink,
    JSONValue,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunResult,
    RunStore,
    StopReason,
)
from polyloop.adapters.openai import OpenAIChatModel

HERE = Path(__file__).resolve().parent
SERVER = HERE.parent / ".venv" / "llm" / "bin" / "python"
EVENTS = 30
"""Up to which event of a process it may be killed; a run that goes well has about five a step."""
SECONDS = (1.0, 15.0)
"""Between which seconds of its life; the first goes by before it begins."""


def _text(characters: int) -> JSONValue:
    # Without a bound it would go on until the limit of output.
    return {"type": "string", "minLength": 1, "maxLength": characters}


def _decision(tool: str, **arguments: JSONValue) -> JSONValue:
    inner: JSONValue = {
        "type": "object",
        "properties": arguments,
        "required": list(arguments),
        "additionalProperties": False,
    }
    properties: dict[str, JSONValue] = {"thought": _text(80), "tool": {"const": tool}, "arguments": inner}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_DECISION: JSONValue = {
    "anyOf": [
        _decision("list_tables"),
        _decision("run_sql", sql=_text(160)),
        _decision("submit", region=_text(20), month=_text(7), excess_cents={"type": "integer"}, cause=_text(80)),
    ]
}
SCHEMA: dict[str, JSONValue] = {"type": "json_schema", "json_schema": {"name": "decision", "schema": _DECISION}}
"""What the server holds the model to in every second run: it still calls with SQL that is none. In the others it says
what it likes, and mostly nothing that can be parsed."""

SHOTS = tuple(
    ChatMessage(role="user" if turn % 2 == 0 else "assistant", content=content)
    for turn, content in enumerate(
        (
            "How many customers are there?",
            '{"thought": "Which tables are there?", "tool": "list_tables", "arguments": {}}',
            '[{"table": "customers", "columns": ["customer_id", "region_id"], "rows": 3}]',
            '{"thought": "Count.", "tool": "run_sql", "arguments": {"sql": "select count(*) from customers"}}',
            '{"columns": ["count(*)"], "rows": [[3]]}',
        )
    )
)
"""A base model goes on as the text before it does."""


class Options(NamedTuple):
    """What the command line says."""

    data_dir: Path
    base_url: str | None
    model: str
    runs: int
    kills: int
    seed: int
    key: RunKey | None
    run: int
    die_at_event: int | None

    @property
    def assembly(self) -> quickstart.Options:
        """The quickstart's, of which the data are used."""
        return quickstart.Options(
            data_dir=self.data_dir,
            base_url=None,
            model=None,
            sampling={},
            kills=(),
            key=self.key,
            process=1,
            verify=False,
        )


class KilledAtEvent:
    """A sink whose process dies at an event of a given number."""

    def __init__(self, sink: EventSink, number: int) -> None:
        self._sink = sink
        self._left = number

    async def emit(self, event: Event, /) -> None:
        """Pass the event on, and die or not."""
        await self._sink.emit(event)
        self._left -= 1
        if not self._left:
            die(f"at {type(event).__name__}")


# ------------------------------------------------------------------------------------------- The agent


def build(options: Options, store: RunStore, key: RunKey, client: AsyncOpenAI) -> tuple[AgentDefinition, RunRequest]:
    """The quickstart's agent, with another model, a shorter leash, and turns to go on from."""
    definition, request = quickstart.build(options.assembly, store, key)
    model = OpenAIChatModel(
        client,
        model=options.model,
        temperature=1.0,
        top_p=None,
        max_tokens=256,
        max_completion_tokens=None,
        seed=options.seed + options.run,
        stop=("\nuser:", "\nassistant:"),
        response_format=None if options.run % 2 else SCHEMA,
        extra_body={},
        timeout_s=120.0,
        # A request that failed has failed: it is the run's end, and not another try.
        max_retries=0,
    )
    sink = definition.events
    if options.die_at_event is not None:
        sink = KilledAtEvent(sink, options.die_at_event)
    return dataclasses.replace(definition, model=model, events=sink), dataclasses.replace(
        request,
        budget=Budget(max_steps=8, max_executed_actions=5, max_prompt_chars=14_000, max_consecutive_parse_failures=3),
        item_segments=(*SHOTS, *request.item_segments),
        model_call_replay=ReplayPolicy.SAFE,
    )


@contextlib.asynccontextmanager
async def _opened(options: Options, key: RunKey) -> AsyncIterator[tuple[AgentDefinition, RunRequest, RunStore]]:
    async with (
        # The key of a server on loopback opens nothing, and the SDK wants one.
        AsyncOpenAI(base_url=options.base_url, api_key=os.environ.get("OPENAI_API_KEY") or "none") as client,
        options.assembly.store as store,
    ):
        yield *build(options, store, key, client), store


async def one_process(options: Options, key: RunKey) -> None:
    """The agent's life in one process. The one before may have died before the run began."""
    async with _opened(options, key) as (definition, request, store):
        begun = (await store.read_log(key)).started is not None
        await (definition.resume(request) if begun else definition.run(request))


# ------------------------------------------------------------------------------------------- The parent


@contextlib.contextmanager
def served(options: Options) -> Iterator[str]:
    """The address of a model: the one that was given, or that of our own server."""
    if options.base_url is not None:
        yield options.base_url
        return
    if not SERVER.exists():
        raise SystemExit("The model is not installed: make demo-llm does it, and downloads 272 MB.")
    print("Starting the model's server", flush=True)
    with (
        (options.data_dir / "server.log").open("wb") as log,
        subprocess.Popen(  # noqa: S603 - our own script
            [SERVER, HERE / "demo_llm_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address = server.stdout.readline().decode().strip()
            if not address:
                raise SystemExit(f"The server did not start: see {log.name}")
            yield f"{address}/v1"
        finally:
            server.stdin.close()
            server.kill()


def demo(options: Options) -> int:
    """Make up the data, run the agent, kill it, check the claims. Returns the exit code."""
    options.data_dir.mkdir(parents=True, exist_ok=True)
    orders.build(options.assembly.database)
    began = time.monotonic()
    claims, ends = Claims(), Counter[str]()
    with served(options) as url:
        options = options._replace(base_url=url)
        stamp = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S.%f}-{os.getpid()}"
        print(f"Data and logs: {options.data_dir}\nModel: {options.model} at {url}; seed {options.seed}")
        for number in range(options.runs):
            key = RunKey(f"demo-llm-{stamp}-{number}")
            print(f"\nRun {number}: {key}", flush=True)
            killed = _processes(options._replace(run=number), key)
            result = asyncio.run(_check(options._replace(run=number), key, killed, claims))
            ends[str(result.stop_reason)] += 1
    print(f"\n{options.runs} runs in {time.monotonic() - began:.0f} s:")
    for reason, times in ends.most_common():
        print(f"  {times:4}  {reason}")
    return 1 if claims.failed else 0


def _processes(options: Options, key: RunKey) -> int:
    """Start one process after the other and kill it, until one comes to the end. Returns how many died."""
    chance = random.Random(f"{options.seed} {options.run}")  # noqa: S311 - which moment to kill at
    for number in range(options.kills + 1):
        moments = (chance.randint(1, EVENTS), None), (None, chance.uniform(*SECONDS))
        event, seconds = chance.choice(moments) if number < options.kills else (None, None)
        code = _process(options, key, event, seconds)
        if code == 0:
            return number
        if code != -signal.SIGKILL:
            raise SystemExit(f"process {number} of run {options.run} ended with exit code {code}")
    raise AssertionError("the last process is not killed")


def _process(options: Options, key: RunKey, event: int | None, seconds: float | None) -> int:
    command = [sys.executable, __file__, "--data-dir", str(options.data_dir), "--base-url", options.base_url or ""]
    command += ["--model", options.model, "--seed", str(options.seed), "--run", str(options.run), "--key", key]
    command += [] if event is None else ["--die-at-event", str(event)]
    try:
        return subprocess.run(command, check=False, timeout=seconds).returncode  # noqa: S603 - this very file
    except subprocess.TimeoutExpired:
        # `run` has killed it, and waited until it was dead.
        print(f"{'SIGKILL':>14}  after {seconds:.2f} s", flush=True)
        return -signal.SIGKILL


async def _check(options: Options, key: RunKey, killed: int, claims: Claims) -> RunResult:
    """What must hold of any run, whatever the model said."""
    ledger = options.assembly.ledger
    async with _opened(options, key) as (definition, request, store):
        log, entries = await store.read_log(key), ledger.entries(key)
        result = await definition.resume(request)
        undisturbed = await store.read_log(key) == log and ledger.entries(key) == entries
    print(f"What is so, after {killed} kills:")
    claims.end(result, expected=frozenset(StopReason) - {StopReason.CANCELLED})
    claims.check(
        f"the log is complete: {len(log.records())} records, the last of which is the end",
        holds=log.finished is not None and log.finished.stop_reason is result.stop_reason,
    )
    claims.check("asked once more, resume() returned the stored result and did nothing", holds=undisturbed)
    claims.ledger(entries, log, must_query=False)
    return result


def _options() -> Options:
    parser = argparse.ArgumentParser(description="A really small model, killed at any moment.")
    parser.add_argument("--data-dir", type=Path, default=Path("demo-data") / "llm", help="where everything is kept")
    parser.add_argument("--base-url", help="another OpenAI-compatible endpoint; its key is taken from OPENAI_API_KEY")
    parser.add_argument("--model", default="gemma3-270m", help="the model's name there")
    parser.add_argument("--runs", type=int, default=6, help="how many runs")
    parser.add_argument("--kills", type=int, default=3, help="how often each run's process is killed, at most")
    parser.add_argument("--seed", type=int, default=1, help="of the model's sampling, and of the moments to kill at")
    parser.add_argument("--key", type=RunKey, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--die-at-event", type=int, help=argparse.SUPPRESS)
    said = vars(parser.parse_args())
    return Options(**{**said, "data_dir": said["data_dir"].absolute()})


def main() -> int:
    """Be the parent, or one of its children. Returns the exit code."""
    options = _options()
    if options.key is not None:
        asyncio.run(one_process(options, options.key))
        return 0
    return demo(options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
