"""Every error that PolyLoop raises in its own name.

::

    PolyLoopError
    ├── InvalidRequest           a value, definition, request, tool or key is wrong; names the field
    │   └── RunNotFound          `resume` of a key that has no log
    ├── RunAlreadyExists         `run` of a key that has a log
    ├── RunIdentityMismatch      `resume` with something else than the run was started with
    ├── CorruptRunLog            a stored log is damaged; never repaired
    ├── RunConflict              somebody else drives this run, or has moved its log
    ├── StoreBusy                a store's bounded wait ran out; nothing was written
    ├── UnsupportedSchemaVersion a record was written by a version that this one cannot read
    └── EnvironmentFailure       raised by a tool handler: the environment itself is broken

Everything else passes through unchanged: a store's `OSError`, a driver's error, a parser's bug. One
condition is one class; its facts are typed attributes, its message says what was wrong, where, and what
to do. All of them survive `pickle` and `copy`. Why: `research-wiki/design/0004-names-and-signatures.md`.
"""

from __future__ import annotations

import dataclasses
import enum


def _rebuild(cls: type[PolyLoopError], args: tuple[str, ...], state: dict[str, object]) -> PolyLoopError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def _shown(key: str) -> str:
    """A run key as it stands in a message: escaped, and cut where it is long."""
    return ascii(key if len(key) <= 120 else key[:117] + "...")  # noqa: PLR2004 - a line's worth


class PolyLoopError(Exception):
    """The root of PolyLoop's own errors."""

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors take typed facts, not the message, so the default protocol cannot rebuild them.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class InvalidRequest(PolyLoopError):  # noqa: N818 - the published name
    """A value, definition, request, tool specification, key or store path is wrong.

    Raised before anything is written.
    """

    field: str
    """The field or path that is wrong, such as `Budget.max_steps` or `params.temperature`."""
    problem: str
    """What is wrong with it, and what to give instead."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RunNotFound(InvalidRequest):
    """There is nothing to resume under this key: its log is empty."""

    key: str
    """The key that was asked for."""

    def __init__(self, key: str) -> None:
        super().__init__("RunRequest.key", f"no run is recorded under {_shown(key)}; start it with run()")
        self.key = key


class RunAlreadyExists(PolyLoopError):  # noqa: N818 - the published name
    """The key has a log already. Nothing was written."""

    key: str
    """The key that is taken."""

    def __init__(self, key: str) -> None:
        super().__init__(f"a run is recorded under {_shown(key)} already; go on with resume(), or choose a new key")
        self.key = key


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IdentityDifference:
    """One place in which the present assembly differs from the recorded one."""

    path: str
    """Where, from the top of `params_snapshot`: `budget.max_steps`, `tools[1].parameters.type`."""
    recorded: str | None
    """The recorded value as canonical JSON text; None where the run was started without this path."""
    present: str | None
    """The present value as canonical JSON text; None where the present assembly lacks this path."""


class RunIdentityMismatch(PolyLoopError):  # noqa: N818 - the published name
    """`resume` was called with something else than the run was started with.

    The values stand in the attribute and in the message, so port `params` must hold no secrets.
    """

    key: str
    """The run's key."""
    differences: tuple[IdentityDifference, ...]
    """Every differing path, in the order of the canonical JSON text; never empty."""

    def __init__(self, key: str, differences: tuple[IdentityDifference, ...]) -> None:
        listed = "; ".join(
            f"{each.path}: recorded {_cut(each.recorded)}, present {_cut(each.present)}" for each in differences[:20]
        )
        more = f"; and {len(differences) - 20} more" if len(differences) > 20 else ""  # noqa: PLR2004 - as cut above
        super().__init__(
            f"run {_shown(key)} was started with different parameters ({listed}{more}); "
            "resume it with the recorded ones, or start a new key"
        )
        self.key = key
        self.differences = differences


def _cut(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004 - a message stays readable


class CorruptionReason(enum.StrEnum):
    """Why a log is refused. A closed list: a log is either sound or refused with one of these."""

    MALFORMED_LINE = "malformed_line"
    """A stored line is not what a store of this library writes, or its checksum does not fit."""
    MALFORMED_RECORD = "malformed_record"
    """The text of a record is not a record of its schema version."""
    WRONG_KEY = "wrong_key"
    """What is stored in the place of this key belongs to another key."""
    WRONG_POSITION = "wrong_position"
    """A record does not stand at the position that it names: one is missing, doubled or misplaced."""
    MISSING_START = "missing_start"
    """The first record is not a start record."""
    SECOND_START = "second_start"
    """A start record stands behind the first position."""
    RECORD_AFTER_END = "record_after_end"
    """A record follows an end record other than `cancelled`."""
    WRONG_STEP = "wrong_step"
    """A record names another step than the one that is due."""
    WRONG_ATTEMPT = "wrong_attempt"
    """An intent's attempt does not follow the one before it."""
    WRONG_EFFECT = "wrong_effect"
    """An intent, result or step does not fit the effect that is under way."""
    INTENT_WITHOUT_TURN = "intent_without_turn"
    """An intent stands where no effect of its kind is due."""
    RESULT_WITHOUT_INTENT = "result_without_intent"
    """A result stands where no effect is open."""
    SECOND_RESULT = "second_result"
    """An effect has two results."""
    STEP_WITHOUT_RESULT = "step_without_result"
    """A step stands where its model call or action has no result yet."""
    WRONG_VERDICT = "wrong_verdict"
    """A step's or an end record's stop reason contradicts the records before it."""


class CorruptRunLog(PolyLoopError):  # noqa: N818 - the published name
    """A stored log is damaged. It is refused and left as it is, never repaired."""

    reason: CorruptionReason
    """What kind of damage: match on this, not on the words."""
    problem: str
    """What was found, in words."""
    key: str | None
    """The run's key, None where the error rose before a key was known."""
    seq: int | None
    """The position of the record concerned, where known."""
    line: int | None
    """For a file store: the line's number, from 1."""
    offset: int | None
    """For a file store: the line's first byte, from 0."""

    def __init__(
        self,
        reason: CorruptionReason,
        problem: str,
        *,
        key: str | None = None,
        seq: int | None = None,
        line: int | None = None,
        offset: int | None = None,
    ) -> None:
        where = "" if key is None else f" of run {_shown(key)}"
        place = ", ".join(
            f"{name} {value}" for name, value in (("seq", seq), ("line", line), ("byte", offset)) if value is not None
        )
        super().__init__(
            f"the log{where} is damaged ({reason.value}{', ' + place if place else ''}): {problem}; "
            "it is left as it is: restore it from a copy, or start a new key"
        )
        self.reason = reason
        self.problem = problem
        self.key = key
        self.seq = seq
        self.line = line
        self.offset = offset

    def located(
        self, *, key: str | None = None, seq: int | None = None, line: int | None = None, offset: int | None = None
    ) -> CorruptRunLog:
        """The same finding with the places that a caller knows filled in; those already known stay."""
        return CorruptRunLog(
            self.reason,
            self.problem,
            key=self.key if key is None else key,
            seq=self.seq if seq is None else seq,
            line=self.line if line is None else line,
            offset=self.offset if offset is None else offset,
        )


class RunConflict(PolyLoopError):  # noqa: N818 - the published name
    """This driver is behind: somebody else drives the run, or the log has moved. Nothing was written."""

    key: str
    """The run's key."""
    problem: str
    """What happened, in words."""
    seq: int | None
    """The position that the refused record names; None where no record was involved."""
    next_seq: int | None
    """The position that the log expects next, where known."""

    def __init__(self, key: str, problem: str, *, seq: int | None = None, next_seq: int | None = None) -> None:
        super().__init__(
            f"run {_shown(key)}: {problem}; read the log again with resume() once the other driver has ended"
        )
        self.key = key
        self.problem = problem
        self.seq = seq
        self.next_seq = next_seq


class StoreBusy(PolyLoopError):  # noqa: N818 - the published name
    """A store's bounded wait ran out. Nothing was written, and the run can be resumed."""

    key: str | None
    """The run concerned; None where the wait was for the whole store."""
    waited_s: float
    """How long the store waited, in seconds."""

    def __init__(self, key: str | None, waited_s: float) -> None:
        subject = "the store" if key is None else f"the log of run {_shown(key)}"
        super().__init__(
            f"{subject} was in use by another process for {waited_s:.1f} s; nothing was written: try again later"
        )
        self.key = key
        self.waited_s = waited_s


class UnsupportedSchemaVersion(PolyLoopError):  # noqa: N818 - the published name
    """A record was written by a version of the library that this one cannot read."""

    found: str
    """The version in the record."""
    supported: str
    """The newest version that this library reads."""

    def __init__(self, found: str, supported: str, problem: str) -> None:
        super().__init__(
            f"a record of schema version {found[:40]!a} cannot be read (this library reads up to {supported}): "
            f"{problem}; use a newer PolyLoop"
        )
        self.found = found
        self.supported = supported


class EnvironmentFailure(PolyLoopError):  # noqa: N818 - the published name
    """Raise it in a tool handler when the environment itself can serve no more.

    The run stops with `env_error`; the message becomes the run's `detail`. An action that merely fails
    (bad SQL, a non-zero exit) is no environment failure: return what happened instead.
    """
