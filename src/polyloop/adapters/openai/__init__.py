"""A model behind any OpenAI-compatible chat endpoint, through the official SDK: the extra `openai`.

::

    async with AsyncOpenAI(base_url="https://models.example/v1", api_key=key) as client:
        model = OpenAIChatModel(
            client,
            model="reviewer-large",
            temperature=0.0,
            top_p=None,                     # None: not sent, the server decides
            max_tokens=2_000,
            max_completion_tokens=None,
            seed=7,
            stop=None,
            response_format=None,
            extra_body={"top_k": 40},
            timeout_s=120.0,
            max_retries=0,
        )

A reply is taken only if it is whole: one choice, text, `finish_reason` "stop". Everything else is an error of its
own, so that a reply which was cut off is never parsed and executed; the run then stops with `llm_error`::

    ChatCompletionError
    ├── RequestNotSentError         the request cannot be written: a lone surrogate in a message, a key for no header
    ├── ConnectionFailedError       no answer, or not a whole one
    ├── TimedOutError               no answer within `timeout_s`
    ├── ErrorAnswerError            the endpoint answered with an error
    ├── MalformedCompletionError    the answer is no chat completion
    ├── ToolCallsError              the model made native tool calls
    ├── RefusalError                the model refused
    ├── IncompleteCompletionError   the completion did not come to its own end
    └── EmptyCompletionError        there is no text in it

None of them holds a credential or a message, and none has an exception of the SDK as its cause or context: those
carry the request with its headers. Why: `research-wiki/design/0021-model-adapters.md`.
"""

try:
    import openai as _sdk  # noqa: F401 - only to say what is missing, where it is
except ModuleNotFoundError as error:
    if error.name != "openai":
        raise
    raise ModuleNotFoundError(
        "polyloop.adapters.openai needs the extra `openai`: pip install 'polyloop[openai]'", name="openai"
    ) from error

from polyloop.adapters.openai.errors import (
    ChatCompletionError,
    ConnectionFailedError,
    EmptyCompletionError,
    ErrorAnswerError,
    IncompleteCompletionError,
    MalformedCompletionError,
    RefusalError,
    RequestNotSentError,
    TimedOutError,
    ToolCallsError,
)
from polyloop.adapters.openai.model import OpenAIChatModel

__all__ = [
    "ChatCompletionError",
    "ConnectionFailedError",
    "EmptyCompletionError",
    "ErrorAnswerError",
    "IncompleteCompletionError",
    "MalformedCompletionError",
    "OpenAIChatModel",
    "RefusalError",
    "RequestNotSentError",
    "TimedOutError",
    "ToolCallsError",
]
