"""`agentflow check` and `agentflow preview`: try a run before its work is done.

The first tries everything that the run needs, one line each; the second works on two seeds or tasks from beginning to end.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import anyio
from msgspec.structs import replace

from agentflow._terminal import printable
from agentflow.cli._display import set_up_logging
from agentflow.cli._output import Exit, buffered_console, print_json
from agentflow.cli._program import watch_run
from agentflow.cli._rollout import assign_tasks, rollout_view
from agentflow.cli._synth import synth_view
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.models import Accounts, Call, Message, ModelSettings, OpenModel, TextPart, make_model
from agentflow.rollout import RESULTS, Assignment, RolloutConfig, RolloutRun, load_rollout_config
from agentflow.runs import choose_tools, sandbox_settings
from agentflow.sandbox import Sandbox
from agentflow.scoring import make_metric
from agentflow.settings import read_environment, read_file
from agentflow.synthesis import PAIRS, TREES, SynthesisConfig, load_synthesis_config
from agentflow.synthesis.pipeline import SynthesisRun, seeds_for
from agentflow.team import model_tools
from agentflow.telemetry import Level

Kind: TypeAlias = Literal["synth", "rollout", "train"]
"""Command that a settings file is for."""
_TRAINING = frozenset({"backbone", "engine", "episodes", "loss", "optimizer", "policy", "schedule", "tasks"})
"""Keys that only settings of a training have; its own module needs an extra."""
_MARKS = {True: "✓", False: "✗", None: "–"}
_SHOWN = 60


Say: TypeAlias = Callable[[str, bool | None, str], None]
"""Reports the result of a check: the part, whether it works, and one line."""


class CheckResult(NamedTuple):
    """Result of one check."""

    name: str
    """Part that was checked."""
    works: bool | None
    """True if it works; `None` if it needs no check, or a person has to judge."""
    text: str
    """One line: details, or the reason and the remedy."""


def run_check(given: argparse.Namespace) -> int:
    """Run the checks and print the results; the status is `FAILED` if a part does not work.

    :raises ConfigurationError: one line, if the settings can't be used.
    """
    set_up_logging(Level.ERROR)
    kind = given.kind or kind_of(given.config, given.settings)
    run, trained = _load(kind, given)
    return anyio.run(_report, kind, run, trained, given)


def kind_of(file: str | None, words: Iterable[str]) -> Kind:
    """Return the command that settings are for: the one that knows most of their keys."""
    try:
        keys = set(read_file(file, read_environment())) if file else set[str]()
    except ConfigurationError:  # loading it gives the reason
        return "synth"
    keys |= {word.partition("=")[0].partition(".")[0] for word in words}
    if keys & _TRAINING:
        return "train"
    more = len(keys & RolloutConfig.known_keys()) > len(keys & SynthesisConfig.known_keys())
    return "rollout" if more else "synth"


def _load(kind: Kind, given: argparse.Namespace) -> tuple[SynthesisConfig | RolloutConfig, tuple[str, ...]]:
    """Load the settings of a run; for a training those of its episodes, and the roles whose model it serves itself."""
    if kind == "synth":
        return load_synthesis_config(given.config, given.settings), ()
    if kind == "rollout":
        return load_rollout_config(given.config, given.settings), ()
    from agentflow.learner import load_train_config  # needs an extra

    config = load_train_config(given.config, given.settings)
    return config.rules_for("training"), config.episodes.trained_roles


async def _report(
    kind: Kind, run: SynthesisConfig | RolloutConfig, trained: tuple[str, ...], given: argparse.Namespace
) -> int:
    results: list[CheckResult] = []

    def say(name: str, works: bool | None, text: str) -> None:
        results.append(CheckResult(name, works, printable(" ".join(text.split()))))
        if not given.json:
            sys.stdout.write(f"{_MARKS[works]} {name:<9} {results[-1].text}\n")
            sys.stdout.flush()

    say("settings", True, f"{given.config or 'none given'}, for agentflow {kind}")
    await _check(run, trained, say)
    status = Exit.FAILED if any(result.works is False for result in results) else Exit.DONE
    if given.json:
        print_json({"status": int(status), "checks": [result._asdict() for result in results]})
    return status


async def _check(run: SynthesisConfig | RolloutConfig, trained: tuple[str, ...], say: Say) -> None:
    """Try the parts in the order in which a run needs them; one that does not work does not end the others."""
    assignment = _read_work(run, say)
    await _try_tools(run, say)
    async with AsyncExitStack() as stack:
        models: dict[str, OpenModel] = {}
        for settings, roles in _distinct(run, trained):
            name = f"{settings.name} ({', '.join(roles)})"
            if settings.name in ("offline", "frozen"):
                say("model", None, f"{name}: needs no key and no call")
                continue
            try:
                model = await stack.enter_async_context(make_model(settings, Accounts()))
                say("model", True, f"{name} {await _answer(model)}")
                models |= dict.fromkeys(roles, model)
            except AgentFlowError as error:
                say("model", False, f"{name}: {error}")
        if assignment is not None and isinstance(run, RolloutConfig) and run.evaluate_results:
            await _try_reward(assignment, models.get("judge"), say)


def _read_work(run: SynthesisConfig | RolloutConfig, say: Say) -> Assignment | None:
    """Read the seeds or the tasks."""
    try:
        if isinstance(run, SynthesisConfig):
            say("seeds", True, f"{len(seeds_for(run))} in {run.seeds_file or 'the bundled file'}")
            return None
        assignment = assign_tasks(run)
    except AgentFlowError as error:
        say("seeds" if isinstance(run, SynthesisConfig) else "tasks", False, str(error))
        return None
    say("tasks", True, f"{len(assignment.tasks)} of {assignment.name}, metric {assignment.metric}")
    return assignment


async def _try_tools(run: SynthesisConfig | RolloutConfig, say: Say) -> None:
    """Start the backends of all requested tools."""
    try:
        settings, broken = sandbox_settings(run)
        engines = _tool_models(run) if isinstance(run, RolloutConfig) else {}
        backends = [*(settings.backend_names or ()), *model_tools(**engines)] if engines else None
        async with Sandbox(settings, backends=backends) as sandbox:
            chosen = await choose_tools(sandbox, run.model_copy(update={"on_missing_tool": "drop"}), broken)
    except AgentFlowError as error:
        say("tools", False, str(error))
        return
    for name, reason in chosen.dropped.items():
        spared = run.on_missing_tool == "drop" or name in chosen.optional
        say("tools", None if spared else False, f"{name}: {reason}")
    say("tools", True, ", ".join(tool.name for tool in chosen.tools))
    if chosen.corpus:
        say("corpus", True, chosen.corpus)


def _tool_models(run: RolloutConfig) -> dict[str, OpenModel]:
    """Return the models inside tools, not open."""
    roles = {name: run.tool_role(name) for name in run.model_tools}
    return {name: make_model(run.model_for(role), Accounts()) for name, role in roles.items()}


def _distinct(
    run: SynthesisConfig | RolloutConfig, trained: tuple[str, ...]
) -> Iterable[tuple[ModelSettings, list[str]]]:
    """Return each model at each address with its roles, except the trained one."""
    unused = ("verifier",) if isinstance(run, SynthesisConfig) and run.verifier != "model" else ()
    distinct: dict[str, tuple[ModelSettings, list[str]]] = {}
    models = (
        run.models
        if isinstance(run, RolloutConfig)
        else {role: run.model_for(role) for role in run.role_models}
    )
    for role, settings in models.items():
        if role not in (*trained, *unused):
            key = f"{settings.name} {settings.base_url} {settings.api_key.get_secret_value()}"
            distinct.setdefault(key, (settings, []))[1].append(role)
    return distinct.values()


async def _answer(model: OpenModel) -> str:
    """Make one call, and describe the answer."""
    question = Message("user", (TextPart("Reply with the single word: ready"),))
    completion = await model.complete(Call(role="check", messages=(question,), reply=str))
    used = completion.usage.prompt_tokens + completion.usage.completion_tokens
    return f"answered {completion.text.strip()[:_SHOWN]!r}, {used} tokens"


async def _try_reward(assignment: Assignment, judge: OpenModel | None, say: Say) -> None:
    """Score the reference answer of the first task."""
    task = assignment.tasks[0]
    answer = task.references[0] if task.references else ""
    try:
        metric = make_metric(assignment.metric, options=assignment.options, judge=judge)
        scored = await metric.score(answer, task)
    except AgentFlowError as error:
        say("reward", False, str(error))
        return
    if scored.failure is not None:
        say("reward", False, f"{assignment.metric}: {scored.failure.message}")
        return
    text = f"{assignment.metric}: {scored.score:g} for the reference answer of task {task.id}, {answer[:_SHOWN]!r}"
    say("reward", True if scored.score else None, text)


_OBSERVATION_CHARS = 160


def run_preview(given: argparse.Namespace) -> int:
    """Run two seeds or tasks in a temporary directory, and print what came of them.

    :raises AgentFlowError: one line, if it fails.
    """
    kind = given.kind or kind_of(given.config, given.settings)
    if kind == "train":
        raise ConfigurationError(
            "preview: a training has none; agentflow train backbone=debug prints its episodes"
        )
    with tempfile.TemporaryDirectory(prefix="agentflow-") as folder:
        return (_preview_rollout if kind == "rollout" else _preview_synthesis)(given, Path(folder))


def _preview_synthesis(given: argparse.Namespace, folder: Path) -> int:
    config = load_synthesis_config(given.config, given.settings)
    seeds = seeds_for(config)[: given.number]
    config = config.model_copy(update={"journal": None, "control": False, "learner": None})
    run = SynthesisRun(config, folder)

    def fields() -> dict[str, object]:
        return {"notes": run.notes, "trees": _records(folder / TREES), "pairs": _records(folder / PAIRS)}

    def show() -> None:
        pairs = _records(folder / PAIRS)
        with buffered_console() as console:
            for note in run.notes:
                console.print(note)
            for tree in _records(folder / TREES):
                console.print("")
                for line in _tree_lines(tree):
                    console.print(line, no_wrap=False)
                own = [pair for pair in pairs if pair["source_id"] == tree["source_id"]]
                for pair in own:
                    console.print(f"Q: {pair['question']}\nA: {pair['answer']}")
                if not own:
                    console.print("no question was written")

    view = synth_view(run)
    return watch_run(run, partial(run.run, seeds), view, as_json=given.json, fields=fields, show=show)


def _preview_rollout(given: argparse.Namespace, folder: Path) -> int:
    config = load_rollout_config(given.config, given.settings)
    assignment = assign_tasks(config)
    assignment = replace(assignment, tasks=assignment.tasks[: given.number], samples=1)
    update = {"journal": None, "output_dir": str(folder), "samples": 1, "save_results": True}
    run = RolloutRun(config.model_copy(update={**update, "trajectory_only": False}))

    def fields() -> dict[str, object]:
        return {"notes": run.notes, "summary": run.summary, "results": _records(folder / RESULTS)}

    def show() -> None:
        with buffered_console() as console:
            for note in run.notes:
                console.print(note)
            for result in _records(folder / RESULTS):
                shown = {
                    name: result.get(name) for name in ("question", "answer", "reference", "score", "failure")
                }
                console.print("")
                for name, value in shown.items():
                    if value is not None:
                        console.print(f"{name:<10} {' '.join(str(value).split())}")

    work = partial(run.run, assignment)
    return watch_run(run, work, rollout_view(run), as_json=given.json, fields=fields, show=show)


def _records(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file; none if the run ended before it was written."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def _tree_lines(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the actions of a tree, indented by depth, each with the beginning of its observation."""
    for node in tree["nodes"]:
        action, text = node["action"], " ".join(str(node["observation"]).split())
        head = f"{action['tool']} {json.dumps(action['args'], ensure_ascii=False)}: " if action else ""
        yield f"{'  ' * node['depth']}{head}{text[:_OBSERVATION_CHARS]}{'…' if len(text) > _OBSERVATION_CHARS else ''}"
