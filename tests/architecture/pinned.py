"""The public surface, pinned. A change here is a change for users: see CLAUDE.md before you make one.

Fields and literals are only ever added.
"""

from __future__ import annotations

from typing import Final

MODULES: Final = {
    "polyloop.types": [
        "ActionEnded",
        "ActionKind",
        "ActionOutcome",
        "ActionStarted",
        "ActionStatus",
        "Budget",
        "ChatMessage",
        "CorruptRunLog",
        "CorruptionReason",
        "EffectCompleted",
        "EffectIntended",
        "EffectKind",
        "EnvironmentFailure",
        "Event",
        "IdentityDifference",
        "InjectedEntry",
        "InvalidRequest",
        "JSONValue",
        "ModelCallEnded",
        "ModelCallStarted",
        "ModelReply",
        "PlannedAction",
        "PolyLoopError",
        "Record",
        "ReplayPolicy",
        "Role",
        "RunAlreadyExists",
        "RunClosed",
        "RunConflict",
        "RunFinished",
        "RunIdentityMismatch",
        "RunKey",
        "RunLog",
        "RunNotFound",
        "RunOpened",
        "RunResult",
        "RunStarted",
        "Step",
        "StepCompleted",
        "StepEnded",
        "StopReason",
        "StoreBusy",
        "ToolDocsStyle",
        "UnsupportedSchemaVersion",
        "Usage",
    ],
    "polyloop.ports": [
        "Action",
        "ActionDecision",
        "ActionExecutor",
        "Decision",
        "DecisionParser",
        "EventSink",
        "FinalAnswer",
        "InvalidDecision",
        "ModelCall",
        "ModelPort",
        "ParsedReply",
        "RunStore",
    ],
    "polyloop.tools": ["ToolRegistry", "ToolResult", "ToolSpec", "current_action"],
    "polyloop.serialization": ["SCHEMA_VERSION", "decode", "encode"],
    "polyloop.session": ["AgentDefinition", "RunRequest"],
}

OPT_IN: Final = {
    "polyloop.adapters.fanout": {"FanOutSink": "(*sinks: EventSink)"},
    "polyloop.adapters.mcp": {
        "UnusableMCPTool": "(tool: str, field: str, problem: str)",
        "mcp_tools": (
            "(peer: Client | ClientSession, *, replay: ReplayPolicy | Mapping[str, ReplayPolicy], time_limit_s: float, "
            "only: Sequence[str] | None = None, rename: Mapping[str, str] | None = None, prefix: str = , "
            "completes: Collection[str] = ()) -> tuple[ToolSpec, ...]"
        ),
    },
    "polyloop.adapters.opentelemetry": {
        "OpenTelemetrySink": (
            "(*, provider_name: str, request_model: str | None, agent_name: str | None, capture_content: bool, "
            "tracer_provider: TracerProvider | None = None)"
        )
    },
    "polyloop.adapters.openai": {
        "OpenAIChatModel": (
            "(client: AsyncOpenAI, *, model: str, temperature: float | None, top_p: float | None, "
            "max_tokens: int | None, max_completion_tokens: int | None, seed: int | None, "
            "stop: Sequence[str] | None, response_format: Mapping[str, JSONValue] | None, "
            "extra_body: Mapping[str, JSONValue], timeout_s: float, max_retries: int)"
        )
    },
    "polyloop.adapters.polygateway": {
        "PolyGatewayModel": (
            "(client: GatewayClient, *, params: Mapping[str, JSONValue], "
            "keywords: Callable[[Mapping[str, str]], Mapping[str, object]])"
        )
    },
    "polyloop.adapters.progress": {
        "ProgressSink": (
            "(*, total: int | None, already_done: int = 0, stream: TextIO | None = None, plain_every_s: float = 30.0)"
        )
    },
    "polyloop.stores.ephemeral": {"EphemeralRunStore": "()"},
    "polyloop.stores.jsonl": {"JsonlRunStore": "(directory: str | os.PathLike[str])"},
    "polyloop.stores.postgres": {
        "PostgresRunStore": (
            "(dsn: str, *, pool_size: int = 4, statement_timeout_s: float = 30.0, lock_timeout_s: float = 10.0,"
            " connect_timeout_s: float = 10.0)"
        )
    },
    "polyloop.stores.sqlite": {"SqliteRunStore": "(path: str | os.PathLike[str])"},
}

FIELDS: Final = {
    "Action": [
        "action_text: str",
        "tool_name: str | None",
        "arguments: Mapping[str, JSONValue]",
        "key: RunKey",
        "step_idx: int",
        "result_id: str",
    ],
    "ActionDecision": ["action_text: str", "tool_name: str | None", "arguments: Mapping[str, JSONValue]"],
    "ActionEnded": [
        "key: RunKey",
        "step_idx: int",
        "result_id: str",
        "outcome: ActionOutcome | None",
        "error: str | None",
        "wall_ms: int",
    ],
    "ActionOutcome": [
        "status: ActionStatus",
        "observation: str",
        "completed: bool | None",
        "truncated_chars: int = 0",
        "observation_is_synthetic: bool = False",
    ],
    "ActionStarted": ["key: RunKey", "step_idx: int", "result_id: str", "attempt: int", "action: PlannedAction"],
    "AgentDefinition": [
        "model: ModelPort",
        "parser: DecisionParser",
        "store: RunStore",
        "events: EventSink",
        "synthetic_observations: Mapping[ActionStatus, str]",
        "observation_template: str",
    ],
    "Budget": [
        "max_steps: int",
        "max_executed_actions: int",
        "max_prompt_chars: int",
        "max_consecutive_parse_failures: int",
    ],
    "ChatMessage": ["role: Role", "content: str"],
    "EffectCompleted": [
        "seq: int",
        "recorded_at: str",
        "result_id: str",
        "reply: ModelReply | None",
        "outcome: ActionOutcome | None",
        "error: str | None",
    ],
    "EffectIntended": [
        "seq: int",
        "recorded_at: str",
        "result_id: str",
        "kind: EffectKind",
        "step_idx: int",
        "attempt: int",
        "replay: ReplayPolicy",
        "action: PlannedAction | None",
    ],
    "FinalAnswer": ["text: str"],
    "IdentityDifference": ["path: str", "recorded: str | None", "present: str | None"],
    "InjectedEntry": ["entry_id: str", "message: ChatMessage"],
    "InvalidDecision": ["reason: str"],
    "ModelCall": [
        "messages: tuple[ChatMessage, ...]",
        "call_index: int",
        "key: RunKey",
        "result_id: str",
        "binding: Mapping[str, str]",
    ],
    "ModelCallEnded": [
        "key: RunKey",
        "step_idx: int",
        "result_id: str",
        "reply: ModelReply | None",
        "error: str | None",
        "wall_ms: int",
    ],
    "ModelCallStarted": ["key: RunKey", "step_idx: int", "result_id: str", "attempt: int", "prompt_chars: int"],
    "ModelReply": ["call_id: str | None", "text: str", "reasoning: str | None"],
    "ParsedReply": ["history_text: str", "decision: Decision"],
    "PlannedAction": [
        "action_text: str",
        "tool_name: str | None",
        "arguments: Mapping[str, JSONValue]",
        "history_text: str",
    ],
    "RunClosed": ["key: RunKey", "stop_reason: StopReason", "usage: Usage"],
    "RunFinished": [
        "seq: int",
        "recorded_at: str",
        "stop_reason: StopReason",
        "final_answer: str | None",
        "detail: str | None",
        "event_sink_failures: int",
    ],
    "RunLog": [
        "started: RunStarted | None",
        "intents: tuple[EffectIntended, ...]",
        "results: tuple[EffectCompleted, ...]",
        "steps: tuple[StepCompleted, ...]",
        "finished: RunFinished | None",
        "cancellations: tuple[RunFinished, ...] = ()",
    ],
    "RunOpened": ["key: RunKey", "resumed: bool", "steps: int"],
    "RunRequest": [
        "key: RunKey",
        "budget: Budget",
        "executor: ActionExecutor",
        "tools: ToolRegistry",
        "run_segments: tuple[ChatMessage, ...]",
        "item_segments: tuple[ChatMessage, ...]",
        "skills: tuple[InjectedEntry, ...]",
        "model_binding: Mapping[str, str]",
        "model_call_replay: ReplayPolicy",
        "tool_docs_style: ToolDocsStyle",
        "finalize_timeout_s: float",
    ],
    "RunResult": [
        "key: RunKey",
        "stop_reason: StopReason",
        "steps: tuple[Step, ...]",
        "final_answer: str | None",
        "detail: str | None",
        "usage: Usage",
        "params_snapshot: Mapping[str, JSONValue]",
        "event_sink_failures: int",
    ],
    "RunStarted": ["seq: int", "recorded_at: str", "params_snapshot: Mapping[str, JSONValue]", "library_version: str"],
    "Step": [
        "step_idx: int",
        "raw_output: str",
        "content_chars: int",
        "thinking_chars: int",
        "action: str | None",
        "parse_ok: bool",
        "parse_error: str | None",
        "observation: str",
        "observation_is_synthetic: bool",
        "observation_truncated_chars: int",
        "prompt_chars: int",
        "call_id: str | None",
        "step_wall_ms: int",
        "tool_name: str | None = None",
        "tool_arguments_json: str | None = None",
        "action_status: str | None = None",
        "schema_version: str = '1.0'",
    ],
    "StepCompleted": [
        "seq: int",
        "recorded_at: str",
        "step: Step",
        "result_id: str | None",
        "stop_reason: StopReason | None",
        "final_answer: str | None",
    ],
    "StepEnded": ["key: RunKey", "step: Step"],
    "ToolResult": ["observation: str", "completed: bool = False"],
    "ToolSpec": [
        "name: str",
        "description: str",
        "parameters: Mapping[str, JSONValue]",
        "handler: Callable[[dict[str, JSONValue]], Awaitable[ToolResult | str]]",
        "replay: ReplayPolicy = ReplayPolicy.NEVER",
        "completes: bool = False",
    ],
    "Usage": [
        "model_calls: int",
        "executed_actions: int",
        "steps: int",
        "prompt_chars: int",
        "content_chars: int",
        "thinking_chars: int",
    ],
}

SIGNATURES: Final = {
    "ActionExecutor.accepts": "(self) -> ActionKind",
    "ActionExecutor.execute": "(self, action: Action, /) -> ActionOutcome",
    "ActionExecutor.params": "(self) -> Mapping[str, JSONValue]",
    "ActionExecutor.tool_schemas": "(self) -> tuple[Mapping[str, JSONValue], ...]",
    "AgentDefinition.params_view": "(self) -> Mapping[str, JSONValue]",
    "AgentDefinition.resume": "(self, request: RunRequest) -> RunResult",
    "AgentDefinition.run": "(self, request: RunRequest) -> RunResult",
    "CorruptRunLog.__init__": (
        "(self, reason: CorruptionReason, problem: str, *, key: str | None = None, seq: int | None = None, "
        "line: int | None = None, offset: int | None = None) -> None"
    ),
    "CorruptRunLog.located": (
        "(self, *, key: str | None = None, seq: int | None = None, line: int | None = None, "
        "offset: int | None = None) -> CorruptRunLog"
    ),
    "DecisionParser.params": "(self) -> Mapping[str, JSONValue]",
    "DecisionParser.parse": "(self, reply: ModelReply, /) -> ParsedReply",
    "DecisionParser.produces": "(self) -> ActionKind",
    "EventSink.emit": "(self, event: Event, /) -> None",
    "InvalidRequest.__init__": "(self, field: str, problem: str) -> None",
    "ModelPort.call": "(self, call: ModelCall, /) -> ModelReply",
    "ModelPort.params": "(self) -> Mapping[str, JSONValue]",
    "PolyLoopError.__reduce__": "(self) -> tuple[object, ...]",
    "RunAlreadyExists.__init__": "(self, key: str) -> None",
    "RunConflict.__init__": (
        "(self, key: str, problem: str, *, seq: int | None = None, next_seq: int | None = None) -> None"
    ),
    "RunIdentityMismatch.__init__": "(self, key: str, differences: tuple[IdentityDifference, ...]) -> None",
    "RunLog.from_records": "(cls, records: Iterable[Record]) -> RunLog",
    "RunLog.next_seq": "(self) -> int",
    "RunLog.records": "(self) -> tuple[Record, ...]",
    "RunNotFound.__init__": "(self, key: str) -> None",
    "RunStore.append_intent": "(self, key: RunKey, record: EffectIntended, /) -> None",
    "RunStore.append_result": "(self, key: RunKey, record: EffectCompleted, /) -> None",
    "RunStore.append_run_start": "(self, key: RunKey, record: RunStarted, /) -> None",
    "RunStore.append_step": "(self, key: RunKey, record: StepCompleted, /) -> None",
    "RunStore.finish": "(self, key: RunKey, record: RunFinished, /) -> None",
    "RunStore.read_log": "(self, key: RunKey, /) -> RunLog",
    "StoreBusy.__init__": "(self, key: str | None, waited_s: float) -> None",
    "ToolRegistry.__contains__": "(self, item: object) -> bool",
    "ToolRegistry.__init__": "(self, specs: Iterable[ToolSpec]) -> None",
    "ToolRegistry.__iter__": "(self) -> Iterator[ToolSpec]",
    "ToolRegistry.__len__": "(self) -> int",
    "ToolRegistry.__repr__": "(self) -> str",
    "ToolRegistry.docs": "(self, style: ToolDocsStyle) -> str",
    "ToolRegistry.executor": "(self, *, max_observation_chars: int) -> ActionExecutor",
    "ToolRegistry.get": "(self, name: str) -> ToolSpec | None",
    "ToolRegistry.names": "(self) -> tuple[str, ...]",
    "ToolRegistry.schemas": "(self) -> tuple[Mapping[str, JSONValue], ...]",
    "ToolRegistry.subset": "(self, names: Iterable[str]) -> ToolRegistry",
    "ToolRegistry.validate": "(self, name: str, arguments: Mapping[str, JSONValue]) -> str | None",
    "UnsupportedSchemaVersion.__init__": "(self, found: str, supported: str, problem: str) -> None",
    "current_action": "() -> Action",
    "decode": "(text: str) -> Record",
    "encode": "(record: Record) -> str",
}

LITERALS: Final = {
    "ActionKind": {"TEXT": "text", "TOOL_CALL": "tool_call"},
    "ActionStatus": {"EXECUTED": "executed", "NOT_EXECUTED": "not_executed", "ENV_ERROR": "env_error"},
    "CorruptionReason": {
        "MALFORMED_LINE": "malformed_line",
        "MALFORMED_RECORD": "malformed_record",
        "WRONG_KEY": "wrong_key",
        "WRONG_POSITION": "wrong_position",
        "MISSING_START": "missing_start",
        "SECOND_START": "second_start",
        "RECORD_AFTER_END": "record_after_end",
        "WRONG_STEP": "wrong_step",
        "WRONG_ATTEMPT": "wrong_attempt",
        "WRONG_EFFECT": "wrong_effect",
        "INTENT_WITHOUT_TURN": "intent_without_turn",
        "RESULT_WITHOUT_INTENT": "result_without_intent",
        "SECOND_RESULT": "second_result",
        "STEP_WITHOUT_RESULT": "step_without_result",
        "WRONG_VERDICT": "wrong_verdict",
    },
    "EffectKind": {"MODEL_CALL": "model_call", "ACTION": "action"},
    "ReplayPolicy": {"NEVER": "never", "SAFE": "safe"},
    "StopReason": {
        "TASK_COMPLETED": "task_completed",
        "AGENT_FINISHED": "agent_finished",
        "STEP_BUDGET": "step_budget",
        "ACTION_BUDGET": "action_budget",
        "PARSE_FAILED_REPEATEDLY": "parse_failed_repeatedly",
        "CONTEXT_OVERFLOW": "context_overflow",
        "ENV_ERROR": "env_error",
        "LLM_ERROR": "llm_error",
        "CANCELLED": "cancelled",
        "RESUME_STATE_UNKNOWN": "resume_state_unknown",
    },
    "ToolDocsStyle": {"NONE": "none", "JSON_SCHEMA": "json_schema", "MARKDOWN": "markdown"},
}

ERROR_BASES: Final = {
    "PolyLoopError": "Exception",
    "InvalidRequest": "PolyLoopError",
    "RunNotFound": "InvalidRequest",
    "RunAlreadyExists": "PolyLoopError",
    "RunIdentityMismatch": "PolyLoopError",
    "CorruptRunLog": "PolyLoopError",
    "RunConflict": "PolyLoopError",
    "StoreBusy": "PolyLoopError",
    "UnsupportedSchemaVersion": "PolyLoopError",
    "EnvironmentFailure": "PolyLoopError",
}
