"""Runs whose every text tries to become more than text, and the logs that they stand in."""

from __future__ import annotations

from typing import Final

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    JSONValue,
    ModelReply,
    PlannedAction,
    Record,
    ReplayPolicy,
    RunFinished,
    RunStarted,
    Step,
    StepCompleted,
    StopReason,
)

HOST: Final = "hostile.invalid"

# Each says that it ran by setting `owned`, and some ask for something elsewhere.
_CLAIMS: Final = (
    "<script>window.owned=1;fetch('http://hostile.invalid/script')</script>",
    "</script></style></title></textarea></noscript><script>window.owned=2</script>",
    "</script a='</style b='><script >window.owned=17</script b>",
    "<img src=http://hostile.invalid/img onerror=window.owned=3>",
    "<svg onload=window.owned=4><svg/onload='window.owned=5'>",
    "\"'><iframe srcdoc='<script>parent.owned=6</script>' src=http://hostile.invalid/frame></iframe>",
    '<a href="javascript:window.owned=7" autofocus onfocus=window.owned=8 tabindex=1>click</a>',
    "<link rel=stylesheet href=http://hostile.invalid/css><style>@import 'http://hostile.invalid/import';</style>",
    "<style>*{background:url(http://hostile.invalid/background)}</style><base href=http://hostile.invalid/>",
    "<meta http-equiv=refresh content='0;url=http://hostile.invalid/refresh'>",
    "<form action=http://hostile.invalid/form><button formaction='javascript:window.owned=9'>send</button></form>",
    "<!--<script>--><![CDATA[ ]]><script>window.owned=10</script>]]>-->",
    "<details open ontoggle=window.owned=11><input onfocus=window.owned=12 autofocus>",
    "&lt;script&gt;window.owned=13&lt;/script&gt; &#60;script&#62; &amp;amp; &copy",
    "{{7*7}} ${window.owned=14} {% include 'x' %} #{1} <%= 1 %> $title ${made} {0} %s `${window.owned=15}`",
    "\\u003cscript\\u003ewindow.owned=16\\u003c/script\\u003e \\\" \\' \\\\",
    "__proto__ constructor toString",
)
CLAIMS: Final = "".join(_CLAIMS)
SIGNS: Final = (
    "line\u2028paragraph\u2029next\x85 bidi \u202eevil\u202c \u2066iso\u2069 \u200f\u061c zero\u200b\ufeff"
    " tag\U000e0041 "
)
TERMINAL: Final = (
    "\x1b[31mred\x1b[0m\x07 \r\n tab\t del\x7f \x9b c1 joiner\u200d\u200c emoji \U0001f469\u200d\U0001f4bb"
)
LONG: Final = "x" * 30_000

PRINTABLE: Final = f"{CLAIMS}{SIGNS}{TERMINAL}"
"""What may stand in a key, too, which knows neither NUL nor lone surrogates."""

ANYTHING: Final = f"{PRINTABLE}\0nul \ud800lone \udfff"


def at(second: float) -> str:
    """A moment."""
    return f"2026-01-02T03:{int(second // 60):02}:{second % 60:09.6f}+00:00"


def text(field: str) -> str:
    """The text that stands in a field."""
    return f"[{field}] {ANYTHING} {LONG if field in ('observation', 'error') else ''}[/{field}]"


def key(name: str) -> str:
    """A run's key, as long as one may be; which claims have their place in it depends on the length of the name."""
    turned = _CLAIMS[len(name) :] + _CLAIMS[: len(name)]
    return f"{name} {SIGNS}{TERMINAL}{''.join(turned)}"[:1024]


def start() -> RunStarted:
    """A start whose parameters are hostile in name and value."""
    params: dict[str, JSONValue] = {
        text("param name"): {text("inner name"): [text("param"), 2**70, -0.5, None, True, {}, []]},
        "__proto__": "x",
    }
    return RunStarted(seq=0, recorded_at=at(0), params_snapshot=params, library_version=text("library version"))


def intent(seq: int, second: float, step: int, kind: EffectKind, *, attempt: int = 1) -> EffectIntended:
    """An announcement."""
    plan = PlannedAction(
        action_text=text("action"),
        tool_name=text("tool"),
        arguments={text("argument name"): text("argument")},
        history_text=text("reply"),
    )
    return EffectIntended(
        seq=seq,
        recorded_at=at(second),
        result_id=f"{step:06d}-{kind.value}",
        kind=kind,
        step_idx=step,
        attempt=attempt,
        replay=ReplayPolicy.SAFE,
        action=plan if kind is EffectKind.ACTION else None,
    )


def result(
    seq: int,
    second: float,
    step: int,
    *,
    reply: ModelReply | None = None,
    outcome: ActionOutcome | None = None,
    error: str | None = None,
) -> EffectCompleted:
    """What came of it."""
    kind = EffectKind.ACTION if outcome is not None else EffectKind.MODEL_CALL
    return EffectCompleted(
        seq=seq,
        recorded_at=at(second),
        result_id=f"{step:06d}-{kind.value}",
        reply=reply,
        outcome=outcome,
        error=error,
    )


def reply() -> ModelReply:
    """A reply."""
    return ModelReply(call_id=text("call id"), text=text("original reply"), reasoning=text("reasoning"))


def acted(step: int) -> Step:
    """A step with an action."""
    return Step(
        step_idx=step,
        raw_output=text("reply"),
        content_chars=10,
        thinking_chars=11,
        action=text("action"),
        parse_ok=True,
        parse_error=None,
        observation=text("observation"),
        observation_is_synthetic=False,
        observation_truncated_chars=12,
        prompt_chars=13,
        call_id=text("call id"),
        step_wall_ms=5000,
        tool_name=text("tool"),
        tool_arguments_json=text("arguments"),
        action_status=ActionStatus.EXECUTED.value,
    )


def ended(step: int, *, raw: str, parse_ok: bool, parse_error: str | None = None) -> Step:
    """A step without an action."""
    return Step(
        step_idx=step,
        raw_output=raw,
        content_chars=0,
        thinking_chars=0,
        action=None,
        parse_ok=parse_ok,
        parse_error=parse_error,
        observation="" if parse_error is None else parse_error,
        observation_is_synthetic=parse_error is not None,
        observation_truncated_chars=0,
        prompt_chars=0,
        call_id=None,
        step_wall_ms=10,
    )


def step(
    seq: int, second: float, row: Step, *, stop: StopReason | None = None, answer: str | None = None
) -> StepCompleted:
    """The record of a step."""
    return StepCompleted(
        seq=seq,
        recorded_at=at(second),
        step=row,
        result_id=None if row.action is None else f"{row.step_idx:06d}-action",
        stop_reason=stop,
        final_answer=answer,
    )


def finish(
    seq: int, second: float, stop: StopReason, *, answer: str | None = None, detail: str | None = None
) -> RunFinished:
    """An end record."""
    return RunFinished(
        seq=seq,
        recorded_at=at(second),
        stop_reason=stop,
        final_answer=answer,
        detail=detail,
        event_sink_failures=0,
    )


def answered() -> list[Record]:
    """An action after 2 s of a model call that was cancelled, interrupted and replayed; then the final answer."""
    executed = ActionOutcome(status=ActionStatus.EXECUTED, observation=text("observation"), completed=False)
    return [
        start(),
        intent(1, 1, 0, EffectKind.MODEL_CALL),
        finish(2, 2, StopReason.CANCELLED),
        intent(3, 12, 0, EffectKind.MODEL_CALL, attempt=2),
        intent(4, 20, 0, EffectKind.MODEL_CALL, attempt=3),
        result(5, 22, 0, reply=reply()),
        intent(6, 22, 0, EffectKind.ACTION),
        result(7, 23.5, 0, outcome=executed),
        step(8, 24, acted(0)),
        intent(9, 200, 1, EffectKind.MODEL_CALL),
        result(10, 201, 1, reply=reply()),
        step(
            11,
            201,
            ended(1, raw=text("reply"), parse_ok=True),
            stop=StopReason.AGENT_FINISHED,
            answer=text("final answer"),
        ),
        finish(12, 202, StopReason.AGENT_FINISHED, answer=text("final answer")),
    ]


def failed() -> list[Record]:
    """A reply that is not understood, then a model call that fails."""
    return [
        start(),
        intent(1, 1, 0, EffectKind.MODEL_CALL),
        result(2, 2, 0, reply=reply()),
        step(3, 2, ended(0, raw=text("reply"), parse_ok=False, parse_error=text("parse error"))),
        intent(4, 3, 1, EffectKind.MODEL_CALL),
        result(5, 4, 1, error=text("error")[:2000]),
        step(6, 4, ended(1, raw="", parse_ok=False), stop=StopReason.LLM_ERROR),
        finish(7, 4, StopReason.LLM_ERROR, detail=text("error")[:2000]),
    ]


def open_run() -> list[Record]:
    """A run in the middle of an action."""
    return [*answered()[:2], result(2, 3, 0, reply=reply()), intent(3, 3, 0, EffectKind.ACTION)]


def misfit() -> list[Record]:
    """What no run can have written, though a store reads it: a step whose action was never announced."""
    return [*answered()[:2], result(2, 3, 0, reply=reply()), step(3, 4, acted(0))]
