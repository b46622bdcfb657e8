"""`RunRequest`: what varies from run to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from polyloop.ports import ActionExecutor
from polyloop.tools import ToolRegistry
from polyloop.types import Budget, ChatMessage, InjectedEntry, ReplayPolicy, RunKey, ToolDocsStyle


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run: its name, its limits, its environment, and what the model is shown.

    No field has a default: nothing may influence a run without being visible where the run is asked for. To be
    brief, keep a template and vary it: `dataclasses.replace(template, key=..., executor=...)`. Cheap to build:
    nothing is checked before `run` or `resume`. Why: `research-wiki/design/0002-public-layers.md`.
    """

    key: RunKey
    """The run's name; another name is another run."""
    budget: Budget
    """The four limits."""
    executor: ActionExecutor
    """The environment: `request.tools.executor(...)`, or one of the project's own. One run each."""
    tools: ToolRegistry
    """The tools that this run may use, as shown to the model; `ToolRegistry(())` for none. Its schemas must be
    the executor's `tool_schemas`."""
    run_segments: tuple[ChatMessage, ...]
    """The start of the prompt: what is the same for many runs. May be empty."""
    item_segments: tuple[ChatMessage, ...]
    """The last part of the prompt before the history: what this run is about. May be empty."""
    skills: tuple[InjectedEntry, ...]
    """Injected items, between tool docs and item segments. May be empty."""
    model_binding: Mapping[str, str]
    """Passed to every model call untouched, for the gateway's bookkeeping; `{}` for none."""
    model_call_replay: ReplayPolicy
    """Whether a model call that was interrupted may be made again. `NEVER` keeps a ledger exact; services that
    live with timeouts need `SAFE`: a run interrupted in a `NEVER` call ends with `resume_state_unknown`."""
    tool_docs_style: ToolDocsStyle
    """How the tools are described in the prompt."""
    finalize_timeout_s: float
    """How long, in seconds, a cancelled run may hold its caller up for the store's sake: to let a write settle
    and to write the end record. Finite, above 0."""
