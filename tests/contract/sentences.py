"""The sentences of the ports' docstrings: the promises quote them, and together with `ELSEWHERE` leave none out.

What a suite cannot see is named here, with the place that sees it. A sentence that is neither quoted nor listed
fails a test, and so does one that is quoted or listed and not written any more.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType

_ELSEWHERE = {
    "says what a port is, and who uses it": """
    The five ports: what a project brings to the loop, and what crosses each seam.
    / A port is a `typing.Protocol`: any object with these members satisfies it, and none needs to inherit. (Do not
    inherit: a frozen dataclass that inherits a Protocol with properties passes type checkers and fails when it is
    built.) A port's docstring is its contract; `tests/contract/` holds a case for each of its sentences. Why the
    seams run here: `research-wiki/design/0005-behaviour-of-the-seams.md`.
    / What holds for every port:
    / Calls a model. On the definition; serves many runs at once.
    / Retries, backoff and quotas belong behind this port (in a gateway), not in its signature.
    / Reads a decision in a reply. On the definition; serves many runs at once.
    / The library brings no parser of its own: a parser is the language of the actions.
    / Executes actions in an environment.
    / Keeps the logs of runs. On the definition;
    / Is told what happens. On the definition; serves many runs at once.
    / Write a run's first record. Barrier.
    / Announce an effect. Barrier: the effect may begin when this has returned.
    / Write what came of an effect. Ordered.
    / Write a step. Ordered.
    / Write an end record. Barrier.
    """,
    "is what the driver does: tests of the session, of recovery and of cancellation": """
    A port that swallows a cancellation cannot make the run go on: what it returned is recorded, and no further port
    is called.
    / Only `Exception` is ever translated into a stop reason. Any other `BaseException` passes with nothing written.
    / : it is stored with each run, compared on resume, and shown in error messages.
    / The driver awaits `call` once a step, after the call's intent is durable.
    / , and gives it no time limit.
    / An empty text is a legal reply.
    / It must be the executor's `accepts`.
    / It must be the parser's `produces`.
    / It must equal `request.tools.schemas`, order included:
    / If it does, or returns something else than a `ParsedReply` (`TypeError`), that is a bug in the parser: the
    exception passes untouched out of `run`, no stop reason is invented, no end record is written, and the run can be
    resumed once the parser is mended.
    / The run goes on, whatever `completed` says
    / The run always stops with `env_error`
    / For `NOT_EXECUTED` and `ENV_ERROR` the model reads the definition's own text for that status; the executor's goes
    to the result record and the event only.
    / Anything that is no `ActionOutcome` counts as an error.
    / : it stops the run with `env_error`, its type and message recorded, cut at 2,000 characters.
    / A store's own exceptions pass through unchanged and end the run at once.
    / The driver awaits one call at a time for a run, and none for a run after one of its calls failed.
    / The driver awaits `emit` in the order of the events, without a limit of time: a sink that may be slow bounds
    itself.
    / , logged with a traceback that shows no values, and counted in `RunResult.event_sink_failures`; the event is not
    emitted again.
    / A sink may call back into the same definition, for another key.
    / What it holds is a copy of the sink's own;
    """,
    "is a freedom of the adapter, or a warning to whoever builds upon it": """
    `append_result` and `append_step` are **ordered**: they may return as soon as the record's place is fixed;
    / Delivery is not guaranteed, and nothing may be built on it: audits read the log.
    """,
    "says again what another sentence promises": """
    It must hold no secrets.
    / Plain JSON, without secrets.
    / The tools that it dispatches to,
    / the key has a record.
    / `record.seq` is not the run's next position, or the run has ended.
    / as for `append_intent`; it may surface at the next call for the key instead.
    / as for `append_result`.
    / as for `append_intent`.
    """,
    "cannot be seen from outside: only its author knows what shapes an adapter, and what it touches": """
    Everything that shapes the replies: model name, temperature, \u2026
    / Everything that shapes the decisions.
    / Everything that shapes the observations.
    / Parsing has no effect outside: after a crash, a reply without an intent behind it is parsed again.
    """,
    "takes a damaged medium or an injected fault: tests of each store": """
    `read_log` of a damaged log raises `CorruptRunLog`; a torn, never acknowledged tail is not damage and is dropped.
    / A record whose append failed is either wholly in the log that this read finds, or not at all.
    / the stored log is damaged.
    / a newer library wrote it.
    """,
}


def normalised(text: str) -> str:
    """A text on one line, so that a sentence is found however it is wrapped."""
    return " ".join(text.split())


ELSEWHERE: dict[str, tuple[str, ...]] = {
    reason: tuple(map(normalised, sentences.split("\n    / "))) for reason, sentences in _ELSEWHERE.items()
}
"""Why a sentence has no case here, and the sentences of which that is true."""

_HEADINGS = re.compile(
    r"=+|\bstatus when\b|`(EXECUTED|NOT_EXECUTED|ENV_ERROR)`|\*[A-Z][A-Za-z ]*[.*]+"
    r"|\b(Returns|Raises|Exception|RunConflict|RunAlreadyExists|CorruptRunLog|UnsupportedSchemaVersion):"
)


def documented(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Every docstring of a module with its owner's name, those under fields included."""
    tree = ast.parse(inspect.getsource(module))
    yield module.__name__, normalised(ast.get_docstring(tree) or "")
    yield from _within(tree.body, "")


def _within(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, str]]:
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{owner}{statement.name}"
            yield name, normalised(ast.get_docstring(statement) or "")
            yield from _within(statement.body, f"{name}.")
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            if isinstance(following.value, ast.Constant) and isinstance(following.value.value, str):
                yield f"{owner}{ast.unparse(target)}", normalised(following.value.value)


def unclaimed(text: str, quotes: Iterable[str]) -> str:
    """What is left of a text without the quotes, the headings and the names that head a paragraph."""
    for quote in sorted(map(normalised, quotes), key=len, reverse=True):
        text = text.replace(quote, " ")
    left = normalised(_HEADINGS.sub(" ", text))
    return left if re.search(r"\w", left) else ""
