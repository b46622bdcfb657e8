"""Text adventures made by TextWorld: rooms, doors, keys, and a quest that is told in words.

The action is text, the command itself: `open chest`, `go south`. A command that is no tool call has no replay policy
and is never repeated, so an episode that is killed inside one ends with `resume_state_unknown`. Anywhere else it goes
on, in a game that has been replayed. (`lake` shows the other way: a tool that is declared `SAFE`.)

`completed` is the game's `won`. A game that is lost starts over, within the run and its budgets; see `lake` for why.

Games are made offline from a seed, by the package: it brings the compiler (Inform 7) and the interpreter (Frotz) along.
A game is a matter of seconds to make, so it is kept in a folder. The same seed gives the same game, which
`params` prove by the digest of the game's description.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import textworld
import textworld.generator

from examples.environments.worlds import Episode, PastAction, PolicyModel, Seen, in_thread, played
from examples.parsers import CodeBlockParser
from polyloop import (
    Action,
    ActionKind,
    ActionOutcome,
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    EnvironmentFailure,
    EventSink,
    JSONValue,
    PlannedAction,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunStore,
    ToolDocsStyle,
    ToolRegistry,
)

POOL: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="textworld")
"""All of the package's work is done in one thread: it keeps caches that nobody made for several, and is Python code,
of which only one thread runs at a time anyhow."""

MAX_COMMAND_CHARS: Final = 120
"""The interpreter has room for some 200."""

_CHOICES: Final = "You could: "
_STATUS_LINE: Final = re.compile(r"\n>\s*-=.*", re.DOTALL)
_PLAIN: Final = re.compile(r"[A-Za-z0-9' -]+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Adventure:
    """Which game: the same values, with the same version of the package, are the same game."""

    rooms: int
    """How many rooms there are."""
    objects: int
    """How many things there are."""
    quest_length: int
    """How many commands the quest takes at least."""
    seed: int
    """What the game is drawn from."""

    @property
    def params(self) -> dict[str, JSONValue]:
        """What the game is made from."""
        return {"environment": "textworld", "textworld": textworld.__version__, **dataclasses.asdict(self)}

    def made_in(self, folder: Path) -> Path:
        """The compiled game's file, made if it is not there. Takes seconds, and blocks meanwhile."""
        name = f"{textworld.__version__}-{self.rooms}-{self.objects}-{self.quest_length}-{self.seed}"
        place = folder / name
        if not place.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Made beside, and moved when it is whole: a process may be killed in the middle, or another be faster.
            unfinished = Path(tempfile.mkdtemp(dir=folder, prefix="unfinished-"))
            self._make(unfinished / "game.z8")
            try:
                unfinished.rename(place)
            except OSError:
                if not place.exists():
                    raise
                shutil.rmtree(unfinished)
        return place / "game.z8"

    def _make(self, path: Path) -> None:
        options = textworld.GameOptions()
        options.nb_rooms, options.nb_objects = self.rooms, self.objects
        options.quest_length = self.quest_length
        options.seeds = self.seed
        options.path = str(path)
        textworld.generator.compile_game(textworld.generator.make_game(options), options)


class AdventureWorld:
    """The game itself.

    Args:
        path: The compiled game; its description lies beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._game: Any = None
        self.verbs: tuple[str, ...] = ()
        """What a command may begin with."""

    @property
    def digest(self) -> str:
        """SHA-256 of the game's description. The compiled file will not do: it holds the day on which it was made."""
        return hashlib.sha256(self._path.with_suffix(".json").read_bytes()).hexdigest()

    def begin(self) -> str:
        """Start the game: the quest, the first room, and what could be done."""
        infos = textworld.EnvInfos(
            admissible_commands=True, verbs=True, description=True, objective=True, won=True, lost=True
        )
        self._game = textworld.start(str(self._path), request_infos=infos)
        return self._restarted()

    def step(self, command: str, /) -> Seen:
        """Do what the command says, if the game understands it."""
        state, _, _ = self._game.step(command)
        said = _STATUS_LINE.sub("", state.feedback).strip()
        if state.won:
            return Seen(said, completed=True)
        if state.lost:
            return Seen(f"{said}\n\nYou have lost, and start over.\n\n{self._restarted()}", completed=False)
        return Seen(f"{said}\n\n{_choices(state)}", completed=False)

    def close(self) -> None:
        """End the interpreter."""
        if self._game is not None:
            self._game.close()

    def _restarted(self) -> str:
        state = self._game.reset()
        self.verbs = tuple(sorted(state.verbs))
        return f"{state.objective.strip()}\n\n{state.description.strip()}\n\n{_choices(state)}"


def _choices(state: Any) -> str:
    return _CHOICES + "; ".join(state.admissible_commands)


# ----------------------------------------------------------------------------------------------- The executor


class AdventureExecutor:
    """The executor of one run: each action is one command."""

    accepts = ActionKind.TEXT
    tool_schemas: tuple[Mapping[str, JSONValue], ...] = ()

    def __init__(
        self,
        adventure: Adventure,
        episode: Episode,
        *,
        verbs: Sequence[str],
        digest: str,
        max_observation_chars: int,
    ) -> None:
        self._adventure = adventure
        self._episode = episode
        self._verbs = tuple(verbs)
        self._digest = digest
        self._max_chars = max_observation_chars

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """The game, and the limit on observations."""
        return {**self._adventure.params, "game": self._digest, "max_observation_chars": self._max_chars}

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Give the command to the game. One that it does not understand was executed: the game says what is wrong."""
        problem = self._refused(action.action_text)
        if problem is not None:
            return self._outcome(ActionStatus.NOT_EXECUTED, Seen(problem, completed=False))
        try:
            seen = await self._episode.act(action.result_id, action.action_text.strip())
        except EnvironmentFailure as failure:
            return self._outcome(ActionStatus.ENV_ERROR, Seen(str(failure), completed=False))
        return self._outcome(ActionStatus.EXECUTED, seen)

    def _refused(self, text: str) -> str | None:
        """Why the game must not be given this text.

        The interpreter has commands of its own (quit, save, undo, restart), and takes several in one line. Each
        would go past the run: its steps, its budgets, and its log.
        """
        words = text.lower().split()
        if not words or len(text) > MAX_COMMAND_CHARS or not _PLAIN.fullmatch(text.strip()) or "then" in words:
            return f"a command is one line of up to {MAX_COMMAND_CHARS} letters, digits and blanks, without `then`"
        if words[0] not in self._verbs:
            return f"a command begins with one of {', '.join(self._verbs)}"
        return None

    def _outcome(self, status: ActionStatus, seen: Seen) -> ActionOutcome:
        return ActionOutcome(
            status=status,
            observation=seen.text[: self._max_chars],
            completed=seen.completed,
            truncated_chars=max(0, len(seen.text) - self._max_chars),
        )


@contextlib.asynccontextmanager
async def adventure_executor(
    adventure: Adventure, *, folder: Path, past: Sequence[PastAction], max_observation_chars: int
) -> AsyncIterator[tuple[AdventureExecutor, Episode]]:
    """An executor on a game in which `past` was done already.

    Args:
        adventure: Which game.
        folder: Where games are kept.
        past: `executed_actions` of the run's log.
        max_observation_chars: How much of an answer is kept.

    Raises:
        WorldDiffersError: the game answers otherwise than it did then.
    """
    world = AdventureWorld(await in_thread(POOL, lambda: adventure.made_in(folder)))
    digest = await in_thread(None, lambda: world.digest)
    async with played(world, pool=POOL, past=past, command=command) as episode:
        executor = AdventureExecutor(
            adventure, episode, verbs=world.verbs, digest=digest, max_observation_chars=max_observation_chars
        )
        yield executor, episode


def command(plan: PlannedAction) -> str:
    """What a recorded action says to the game."""
    return plan.action_text.strip()


# ----------------------------------------------------------------------------------------------- The agent


def definition(store: RunStore, events: EventSink) -> AgentDefinition:
    """What all episodes share."""
    return AgentDefinition(
        model=PolicyModel(name="seeker-1", policy=seeker),
        parser=CodeBlockParser(languages=("command", ""), answer_language="answer", blank_history_text="(no text)"),
        store=store,
        events=events,
        synthetic_observations={
            ActionStatus.NOT_EXECUTED: "Not executed: give one plain command, such as those you were told you could.",
            ActionStatus.ENV_ERROR: "The game is gone.",
        },
        observation_template="{observation}",
    )


@contextlib.asynccontextmanager
async def request(folder: Path, key: RunKey, seed: int, past: Sequence[PastAction]) -> AsyncIterator[RunRequest]:
    """One episode."""
    adventure = Adventure(rooms=5, objects=8, quest_length=5, seed=seed)
    async with adventure_executor(adventure, folder=folder, past=past, max_observation_chars=4_000) as (
        executor,
        episode,
    ):
        yield RunRequest(
            key=key,
            budget=Budget(
                max_steps=25, max_executed_actions=25, max_prompt_chars=200_000, max_consecutive_parse_failures=3
            ),
            executor=executor,
            tools=ToolRegistry(()),
            run_segments=(ChatMessage(role="system", content="Play, one command at a time, in a fenced block."),),
            # The opening comes from the environment. A resumed run must see the same, or it is refused.
            item_segments=(ChatMessage(role="user", content=episode.opening),),
            skills=(),
            model_binding={},
            model_call_replay=ReplayPolicy.SAFE,
            tool_docs_style=ToolDocsStyle.NONE,
            finalize_timeout_s=5.0,
        )


_ROOM = re.compile(r"-= (.+?) =-")
_BLOCK = re.compile(r"```command\n(.*)\n```")
_SMALL_WORDS: Final = frozenset(("from", "into", "in", "on", "with", "the"))
_IDLE: Final = ("look", "inventory", "examine")
_ALWAYS_GOOD: Final = ("take", "open", "unlock")
_ONLY_IF_ASKED: Final = ("close", "lock", "drop")


def seeker(messages: Sequence[ChatMessage]) -> str:
    """Does what the quest speaks of, opens and takes what it finds, and else goes where it went least."""
    quest, room, done = "", "", Counter[tuple[str, str]]()
    for message in messages:
        if message.role == "user":
            quest = quest or message.content.partition("\n\n")[0].lower()
            room = (_ROOM.findall(message.content) or [room])[-1]
        elif message.role == "assistant":
            done[room, _BLOCK.findall(message.content)[-1]] += 1
    choices = messages[-1].content.rpartition(_CHOICES)[2].split("; ")
    return f"```command\n{_chosen(choices, room, quest, done)}\n```"


def _chosen(choices: Sequence[str], room: str, quest: str, done: Counter[tuple[str, str]]) -> str:
    new = [each for each in choices if not done[room, each] and not each.startswith(("go ", *_IDLE))]
    wanted = [each for each in new if _is_wanted(each, quest) and not done[room, _undone_by(each)]]
    useful = wanted or [each for each in new if each.startswith(_ALWAYS_GOOD)]
    if useful:
        return useful[0]
    ways = [each for each in choices if each.startswith("go ")]
    return min(ways, key=lambda way: done[room, way]) if ways else "look"


def _is_wanted(command: str, quest: str) -> bool:
    verb, *words = command.lower().split()
    named = all(word in quest for word in words if word not in _SMALL_WORDS)
    return named and (verb not in _ONLY_IF_ASKED or re.search(rf"\b{verb}(e?d)?\b", quest) is not None)


def _undone_by(command: str) -> str:
    """What putting a thing somewhere would undo: taking it from there."""
    return re.sub(r"^(?:insert|put) (.+) (?:into|on) ", r"take \1 from ", command)
