"""An author runs a suite against an adapter of their own, from a package of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract import options

ROOT = Path(__file__).parents[2]

ADAPTERS = '''
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import ChatMessage, RunLog
from tests.contract.cases import ActionSample, ExecutorCase, ModelCase, ParserCase, SinkCase, kept_in_memory
from tests.fakes import RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser


@kept_in_memory
def make_store(folder):
    return EphemeralRunStore()


class FoldingStore(EphemeralRunStore):
    """Lower-cases keys."""

    async def append_run_start(self, key, record, /):
        await super().append_run_start(key.lower(), record)

    async def read_log(self, key, /):
        return await super().read_log(key.lower())


@kept_in_memory
def make_wrong_store(folder):
    return FoldingStore()


def make_model():
    return ModelCase(
        make=lambda: ScriptedModel(lambda call: "hello"),
        messages=(ChatMessage(role="user", content="hello"),),
        binding={},
    )


def make_parser():
    return ParserCase(make=ScriptedParser, actions=("act: go",))


def make_executor():
    return ExecutorCase(make=ScriptedExecutor, action=ActionSample(action_text="go"))


def make_sink():
    return SinkCase(make=RecordingSink)


def make_nothing():
    return None


def make_trouble():
    raise RuntimeError("no container engine")


not_callable = 7
'''

CHOICES = {
    "--run-store": "make_store",
    "--model-port": "make_model",
    "--decision-parser": "make_parser",
    "--action-executor": "make_executor",
    "--event-sink": "make_sink",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "my_adapters.py").write_text(ADAPTERS)
    return tmp_path


def run_pytest(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTEST_ADDOPTS": "", "COLUMNS": "200"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_each_option_runs_its_suite_and_all_may_be_given(package: Path) -> None:
    chosen = [f"{option}=my_adapters:{name}" for option, name in CHOICES.items()]
    done = run_pytest(package, "tests/contract", "--collect-only", *chosen)
    for name in CHOICES.values():
        assert f"[my_adapters:{name}-" in done.stdout
    assert "test_zoo" not in done.stdout
    assert "[jsonl-" not in done.stdout
    assert "[scripted-" not in done.stdout
    done = run_pytest(package, "tests/contract", *chosen[1:])
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "the case has no `expected`" in done.stdout


def test_an_option_is_known_wherever_pytest_is_started(package: Path) -> None:
    """With a single file, and with files of other suites, of which nothing is then run."""
    files = ("tests/contract/test_event_sink.py", "tests/unit/test_json.py", "tests/contract/test_run_store.py")
    done = run_pytest(package, *files, "--event-sink", "my_adapters:make_sink")
    assert done.returncode == 0, done.stdout
    assert "test_json" not in done.stdout
    assert "test_run_store" not in done.stdout


def test_a_wrong_store_fails_with_the_promise_in_words(package: Path) -> None:
    done = run_pytest(package, "tests/contract", "--run-store", "my_adapters:make_wrong_store", "-k", "in_case")
    assert done.returncode == 1
    assert "RunStore breaks the promise keys_that_differ_in_case_are_two_runs" in done.stdout
    assert "Any key within `RunKey`'s rules is a run of its own, down to the code point." in done.stdout
    assert "look at:" in done.stdout


def test_a_wrong_value_ends_the_session_before_the_first_test(package: Path) -> None:
    done = run_pytest(package, "tests/contract", "--run-store", "my_adapters")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--run-store my_adapters: must be MODULE:CALLABLE" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        (options.RUN_STORE, "my_adapters:", "must be MODULE:CALLABLE"),
        (options.RUN_STORE, ":make_store", "must be MODULE:CALLABLE"),
        (options.RUN_STORE, "no_such_module:make", "importing no_such_module failed"),
        (options.RUN_STORE, "my_adapters:make_stroe", "my_adapters has no make_stroe"),
        (options.RUN_STORE, "my_adapters:not_callable", "is not callable"),
        (options.MODEL_PORT, "my_adapters:make_nothing", r"it gave NoneType, must be \(\) -> ModelCase"),
        (options.DECISION_PARSER, "my_adapters:make_model", r"it gave ModelCase, must be \(\) -> ParserCase"),
        (options.ACTION_EXECUTOR, "my_adapters:make_trouble", "no container engine"),
        (options.EVENT_SINK, "my_adapters:make_store", "calling it failed"),
    ],
)
def test_a_wrong_value_is_told_what_it_should_be(
    package: Path, monkeypatch: pytest.MonkeyPatch, option: options.Option, value: str, told: str
) -> None:
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(pytest.UsageError, match=told) as caught:
        options.load(option, value)
    assert str(caught.value).startswith(f"{option.name} {value}: ")
