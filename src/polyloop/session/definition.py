"""`AgentDefinition`: what is the same for many runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from polyloop.ports import DecisionParser, EventSink, ModelPort, RunStore
from polyloop.session._assembled import Ports, assemble, check_ports, definition_params
from polyloop.session._driver import resume_run, start_run
from polyloop.session.request import RunRequest
from polyloop.types import ActionStatus, JSONValue, RunResult


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """The ports and texts that runs share. Safe to use for any number of runs at once.

    No field has a default. Why: `research-wiki/design/0002-public-layers.md`.

    Raises:
        InvalidRequest: a port lacks a method, the texts are not as described below.
    """

    model: ModelPort
    """Answers the prompts. Its `params` are part of every run's identity."""
    parser: DecisionParser
    """Reads the answers: the language of the actions. Its `params` are part of the identity too."""
    store: RunStore
    """Where the logs are kept. `EphemeralRunStore` says visibly that recovery is not wanted."""
    events: EventSink
    """Is told what happens. It cannot stop a run, and nothing may be built on its hearing everything."""
    synthetic_observations: Mapping[ActionStatus, str]
    """What the model reads when an action was `NOT_EXECUTED`, and what the last step shows for `ENV_ERROR`:
    exactly these two keys. What the model sees must be in the snapshot, so the executor's words do not do."""
    observation_template: str
    """How an observation stands in the history: contains `{observation}` exactly once, substituted literally."""

    def __post_init__(self) -> None:
        check_ports(self._ports())
        object.__setattr__(self, "synthetic_observations", dict(self.synthetic_observations))

    @property
    def params_view(self) -> Mapping[str, JSONValue]:
        """The definition's part of every run's snapshot, readable before any run; a fresh copy.

        Raises:
            InvalidRequest: a port's params are not JSON; names the path.
        """
        return definition_params(self._ports())

    async def run(self, request: RunRequest) -> RunResult:
        """Run from the start to a stop reason.

        Raises:
            InvalidRequest: something is wrong with the request; nothing was written.
            RunAlreadyExists: the key has a log; `resume` it.
            RunConflict: the key is being driven through this store object, or another process took it over.
            asyncio.CancelledError: the run was cancelled; `resume` goes on.
            Exception: the store's and the parser's own exceptions, unchanged; `resume` goes on once they are
                mended. Model and executor exceptions become stop reasons.
        """
        return await start_run(assemble(self._ports(), request))

    async def resume(self, request: RunRequest) -> RunResult:
        """Go on with a run from its log, or return the stored result of one that has ended.

        A stored result executes nothing, writes nothing and emits nothing; it equals the one that `run` returned.
        A run that was interrupted inside an effect which must not be repeated ends with `resume_state_unknown`.

        Raises:
            InvalidRequest: something is wrong with the request.
            RunConflict: the key is being driven through this store object, or another process took it over.
            RunNotFound: the key has no log; `run` it.
            CorruptRunLog: the log is damaged.
            RunIdentityMismatch: the run was started with something else.
            asyncio.CancelledError: the run was cancelled; it can be resumed again.
            Exception: as for `run`.
        """
        return await resume_run(assemble(self._ports(), request))

    def _ports(self) -> Ports:
        return Ports(
            model=self.model,
            parser=self.parser,
            store=self.store,
            events=self.events,
            synthetic_observations=self.synthetic_observations,
            observation_template=self.observation_template,
        )
