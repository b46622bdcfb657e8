"""What can go wrong between a prompt and a reply that can be used. The tree stands in `polyloop.adapters.openai`.

No message here holds a credential, a prompt or a reply. What the endpoint itself says comes in masked.
"""

from __future__ import annotations

from typing import Final

from polyloop.types import PolyLoopError

SHOWN_CHARS: Final = 300
"""How much of what an endpoint says is shown."""


def one_line(text: str) -> str:
    """A text of the endpoint on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 3]}..."


class ChatCompletionError(PolyLoopError):
    """The endpoint gave no reply that can be used. The root of this module's errors."""

    call_id: str | None
    """The endpoint's id of the call, to look it up there; None where there was none."""

    def __init__(self, problem: str, *, call_id: str | None = None) -> None:
        super().__init__(problem if call_id is None else f"{problem} (call_id {one_line(call_id)!r})")
        self.call_id = call_id


class RequestNotSentError(ChatCompletionError):
    """The request cannot be written: a message holds a lone surrogate, or a key does not fit into a header."""

    def __init__(self, codec: str) -> None:
        super().__init__(
            f"the request cannot be written as {codec}: a message holds a lone surrogate, or a header of the client "
            "(the API key is one) a character that no header can hold; nothing was sent"
        )


class ConnectionFailedError(ChatCompletionError):
    """No answer came, or not a whole one: nobody listens, the connection was cut, the answer is no HTTP."""

    kind: str
    """The name of the exception below the SDK's own, such as `ConnectError`; the SDK's own where there is none."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the endpoint gave no whole answer ({kind}); the request may have reached it")
        self.kind = kind


class TimedOutError(ChatCompletionError):
    """No whole answer came in time. The connection was closed; the endpoint may be at work still."""

    timeout_s: float
    """The limit, in seconds, retries and the waits between them included."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no whole answer within timeout_s = {timeout_s:g} s; the connection was closed")
        self.timeout_s = timeout_s


class ErrorAnswerError(ChatCompletionError):
    """The endpoint answered with an error."""

    status: int
    """The HTTP status. Some servers report an error with 200."""
    kind: str | None
    """The error's code or type, as the endpoint names it; None if it does not."""

    def __init__(self, status: int, kind: str | None, said: str) -> None:
        named = "" if kind is None else f", {kind}"
        super().__init__(f"the endpoint answered with an error: HTTP {status}{named}" + (f": {said}" if said else ""))
        self.status = status
        self.kind = kind


class MalformedCompletionError(ChatCompletionError):
    """The answer is no chat completion."""

    problem: str
    """What is wrong with it."""

    def __init__(self, problem: str, *, call_id: str | None = None) -> None:
        super().__init__(f"the endpoint's answer is no chat completion: {problem}", call_id=call_id)
        self.problem = problem


class ToolCallsError(ChatCompletionError):
    """The model made native tool calls, which no `ModelReply` can hold, with or without text beside them."""

    def __init__(self, *, call_id: str | None) -> None:
        super().__init__(
            "the reply has native tool calls, which the loop does not know: describe the tools in the prompt, "
            "and let the parser read calls in the text",
            call_id=call_id,
        )


class RefusalError(ChatCompletionError):
    """The model refused, in the field that the endpoint has for it. A refusal in the text is a reply like any."""

    chars: int
    """The length of what it said. The text itself may quote the prompt, and is not kept."""

    def __init__(self, chars: int, *, call_id: str | None) -> None:
        super().__init__(f"the model refused to answer (refusal of {chars} characters)", call_id=call_id)
        self.chars = chars


class IncompleteCompletionError(ChatCompletionError):
    """The completion did not come to its own end: it was cut off, or filtered, or nobody says how it ended."""

    finish_reason: str | None
    """What the endpoint says; None if nothing. `length`: the limit of output or of context was reached."""

    def __init__(self, finish_reason: str | None, *, call_id: str | None) -> None:
        shown = None if finish_reason is None else one_line(finish_reason)
        super().__init__(
            f"the completion is not whole: its finish_reason is {shown!r}, not 'stop'; nothing of it was used",
            call_id=call_id,
        )
        self.finish_reason = finish_reason


class EmptyCompletionError(ChatCompletionError):
    """There is no text in the completion."""

    def __init__(self, problem: str, *, call_id: str | None) -> None:
        super().__init__(f"the completion is empty: {problem}", call_id=call_id)
