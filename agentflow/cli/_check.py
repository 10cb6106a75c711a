"""`agentflow check`: try everything that a run needs, one line each, before its work is done."""

import argparse
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import anyio

from agentflow._terminal import printable
from agentflow.cli._display import set_up_logging
from agentflow.cli._output import Exit, print_json
from agentflow.cli._rollout import assign_tasks
from agentflow.engine import card_of
from agentflow.errors import AgentFlowError, ConfigurationError, ModelFailure, error_line, unwrap_group
from agentflow.models import Accounts, Call, Message, ModelSettings, OpenModel, TextPart, make_model
from agentflow.readers import aprepare_tasks, with_own_scorers
from agentflow.rollouts import Assignment, RolloutConfig, assign, load_rollout_config
from agentflow.runs import choose_tools, duration_text, sandbox_settings
from agentflow.sandbox import Sandbox
from agentflow.scoring import make_metric
from agentflow.settings import import_object, read_environment, read_file
from agentflow.synthesis import SynthesisConfig, load_synthesis_config
from agentflow.synthesis.pipeline import seeds_for
from agentflow.team import model_tools, role_schema
from agentflow.telemetry import Level
from agentflow.trace import ToolCard, Usage

if TYPE_CHECKING:
    from agentflow.learner import TrainConfig

Kind: TypeAlias = Literal["synth", "rollout", "eval", "train", "tune"]
"""Command that a settings file is for."""
_TUNING = frozenset({"agents", "gateway", "reward", "solve"})
_TRAINING = frozenset({"backbone", "engine", "episodes", "loss", "optimizer", "policy", "schedule", "tasks"})
"""Keys that only settings of a training have; its own module needs an extra."""
_BENCHMARK = frozenset({"name", "path"})
"""Keys that only the description of a benchmark has."""
_MARKS = {True: "✓", False: "✗", None: "–"}
_SHOWN = 60
_GIB = 2**30


class CheckResult(NamedTuple):
    """Result of one check."""

    name: str
    """Part that was checked."""
    works: bool | None
    """True if it works; `None` if it needs no check, or a person has to judge."""
    text: str
    """One line: details, or the reason and the remedy."""
    figures: Mapping[str, float]
    """Measurements."""


class Say(Protocol):
    """Reports the result of a check."""

    def __call__(self, name: str, works: bool | None, text: str, /, **figures: float) -> None:
        """Report one line.

        :param name: the part.
        :param works: it works.
        :param figures: measurements.
        """
        ...


class _Checked(NamedTuple):
    """Run that is checked."""

    run: SynthesisConfig | RolloutConfig
    """Its settings; of a training, those of its episodes."""
    models: Mapping[str, ModelSettings]
    """Model of each role, without those that the run serves itself."""
    training: "TrainConfig | None" = None
    """Settings of a training."""
    own_agent: bool = False
    """Its episodes are played by a function or by clients, not by our team."""


def run_check(arguments: argparse.Namespace) -> int:
    """Run the checks and print the results; the status is `FAILED` if a part does not work.

    :raises ConfigurationError: one line, if the settings can't be used.
    """
    set_up_logging(Level.ERROR)
    kind: Kind = arguments.kind or kind_of(arguments.config, arguments.settings)
    return anyio.run(_until_signal, partial(_report, kind, _load(kind, arguments), arguments))


def kind_of(file: str | None, words: Iterable[str]) -> Kind:
    """Return the command that settings are for: the one that knows most of their keys."""
    try:
        keys = set(read_file(file, read_environment())) if file else set[str]()
    except ConfigurationError:  # loading it gives the reason
        return "synth"
    if keys >= _BENCHMARK:
        return "eval"
    keys |= {word.partition("=")[0].partition(".")[0] for word in words}
    if keys & _TUNING:
        return "tune"
    if keys & _TRAINING:
        return "train"
    more = len(keys & RolloutConfig.known_keys()) > len(keys & SynthesisConfig.known_keys())
    return "rollout" if more else "synth"


def _load(kind: Kind, arguments: argparse.Namespace) -> _Checked:
    """Load the settings of a run."""
    if kind == "synth":
        synthesis = load_synthesis_config(arguments.config, arguments.settings)
        unused = ("verifier",) if synthesis.verifier != "model" else ()
        roles = [role for role in synthesis.role_models if role not in unused]
        return _Checked(synthesis, {role: synthesis.model_for(role) for role in roles})
    if kind == "rollout" or kind == "eval":
        described = kind == "eval" and arguments.config and set(read_file(arguments.config, {})) >= _BENCHMARK
        if described:
            rollout = load_rollout_config(None, arguments.settings, {"benchmark_name": arguments.config})
        else:
            rollout = load_rollout_config(arguments.config, arguments.settings)
        return _Checked(rollout, rollout.models)
    # These need an extra.
    if kind == "train":
        from agentflow.learner import load_train_config

        training = load_train_config(arguments.config, arguments.settings)
        models = training.episodes.models
        own_agent = False
    else:
        from agentflow.tuner import load_tune_config

        training = load_tune_config(arguments.config, arguments.settings)
        models = training.wanted_models()
        own_agent = training.solve != "team"
    served = ("policy", "frozen")
    others = {role.removeprefix("role "): model for role, model in models.items() if model.name not in served}
    return _Checked(training.rules_for("training"), others, training, own_agent)


async def _until_signal(work: Callable[[], Awaitable[int]]) -> int:
    """Run the checks; a signal ends them cleanly: a trial has an engine, and a folder with weights."""
    status = int(Exit.INTERRUPTED)
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                await anext(signals)
                tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        status = await work()
        tasks.cancel_scope.cancel()
    return status


async def _report(kind: Kind, checked: _Checked, arguments: argparse.Namespace) -> int:
    results: list[CheckResult] = []

    def report_line(name: str, works: bool | None, text: str, /, **figures: float) -> None:
        results.append(CheckResult(name, works, printable(" ".join(text.split())), figures))
        if not arguments.json:
            sys.stdout.write(f"{_MARKS[works]} {name:<9} {results[-1].text}\n")
            sys.stdout.flush()

    report_line("settings", True, f"{arguments.config or 'none given'}, for agentflow {kind}")
    await _check(kind, checked, report_line)
    if checked.training is not None:
        if arguments.quick:
            report_line(
                "trial", None, "left out because of --quick: no policy was loaded and no engine started"
            )
        elif any(result.works is False for result in results):
            report_line("trial", None, "left out because a part above does not work")
        else:
            await _try_training(checked.training, report_line)
    status = Exit.FAILED if any(result.works is False for result in results) else Exit.DONE
    if arguments.json:
        print_json({"status": int(status), "checks": [result._asdict() for result in results]})
    return status


async def _check(kind: Kind, checked: _Checked, report_line: Say) -> None:
    """Try the parts in the order in which a run needs them; one that does not work does not end the others."""
    run = checked.run
    assignment = await _read_work(kind, checked, report_line)
    cards: list[ToolCard] = []
    if not checked.own_agent or _solve_takes_sandbox(checked, report_line):
        cards = await _try_tools(run, report_line)
    async with AsyncExitStack() as stack:
        models: dict[str, OpenModel] = {}
        for settings, roles in _distinct(checked.models):
            name = f"{settings.name} ({', '.join(roles)})"
            if settings.name in ("offline", "frozen"):
                report_line("model", None, f"{name}: needs no key and no call")
                continue
            try:
                model = await stack.enter_async_context(make_model(settings, Accounts()))
                has_labels = isinstance(run, RolloutConfig) and run.planner_format == "labelled"
                typed = [role for role in roles if not (has_labels and role == "planner")]
                text = await _answer(model, typed, cards, grows=isinstance(run, SynthesisConfig))
                report_line("model", True, f"{name} {text}")
                models |= dict.fromkeys(roles, model)
            except AgentFlowError as error:
                report_line("model", False, f"{name}: {error}")
        if assignment is not None and isinstance(run, RolloutConfig) and run.evaluate_results:
            await _try_reward(checked, assignment, models.get("judge"), report_line)


async def _read_work(kind: Kind, checked: _Checked, report_line: Say) -> Assignment | None:
    """Read the seeds or the tasks."""
    run, training = checked.run, checked.training
    try:
        if isinstance(run, SynthesisConfig):
            report_line("seeds", True, f"{len(seeds_for(run))} in {run.seeds_file or 'the bundled file'}")
            return None
        if kind == "eval" and not (run.data_path or run.benchmark_name):
            report_line("tasks", None, "named by the command: agentflow eval NAME")
            return None
        reader = None if training is None else training.reader_for("training")
        if training is not None and training.schedule.replay is not None:
            report_line(
                "tasks", None, f"none: the stored rollouts of {training.schedule.replay} are replayed"
            )
            return None
        if reader is None:
            assignment = assign_tasks(run)
        else:
            tasks = (await aprepare_tasks(reader)).tasks
            assignment = assign(with_own_scorers(run, tasks), tasks)
    except AgentFlowError as error:
        report_line("seeds" if isinstance(run, SynthesisConfig) else "tasks", False, str(error))
        return None
    report_line("tasks", True, f"{len(assignment.tasks)} of {assignment.name}, metric {assignment.metric}")
    return assignment


def _solve_takes_sandbox(checked: _Checked, report_line: Say) -> bool:
    """Find the agent of a tuning; return whether it works in a sandbox."""
    from agentflow.tuner import TuneConfig, tune_run
    from agentflow.tuner.judges import takes_sandbox

    config = checked.training
    assert isinstance(config, TuneConfig), "only a tuning has an agent of its own"
    if not config.solve:
        report_line("agent", None, "none: clients of agentflow swarm serve play the episodes")
        return False
    try:
        tune_run(config)
        report_line("agent", True, config.solve)
        solve = import_object(config.solve)
        return callable(solve) and takes_sandbox(solve)
    except AgentFlowError as error:
        report_line("agent", False, str(error))
        return False


async def _try_tools(run: SynthesisConfig | RolloutConfig, report_line: Say) -> list[ToolCard]:
    """Start the backends of all requested tools; return the tools that work as the roles see them."""
    try:
        settings, broken = sandbox_settings(run)
        engines = _tool_models(run) if isinstance(run, RolloutConfig) else {}
        backends = [*(settings.backend_names or ()), *model_tools(**engines)] if engines else None
        async with Sandbox(settings, backends=backends) as sandbox:
            chosen = await choose_tools(sandbox, run.model_copy(update={"on_missing_tool": "drop"}), broken)
    except AgentFlowError as error:
        report_line("tools", False, str(error))
        return []
    for name, reason in chosen.dropped.items():
        spared = run.on_missing_tool == "drop" or name in chosen.optional
        report_line("tools", None if spared else False, f"{name}: {reason}")
    report_line("tools", True, ", ".join(tool.name for tool in chosen.tools))
    if chosen.corpus:
        report_line("corpus", True, chosen.corpus)
    return [card_of(tool, {}) for tool in chosen.tools]


def _tool_models(run: RolloutConfig) -> dict[str, OpenModel]:
    """Return the models inside tools, not open."""
    roles = {name: run.tool_role(name) for name in run.model_tools}
    return {name: make_model(run.model_for(role), Accounts()) for name, role in roles.items()}


def _distinct(models: Mapping[str, ModelSettings]) -> Iterable[tuple[ModelSettings, list[str]]]:
    """Return each model at each address with its roles."""
    distinct: dict[str, tuple[ModelSettings, list[str]]] = {}
    for role, settings in models.items():
        key = (
            f"{settings.name} {settings.base_url} {settings.api_key.get_secret_value()} {settings.structured}"
        )
        distinct.setdefault(key, (settings, []))[1].append(role)
    return distinct.values()


async def _answer(model: OpenModel, roles: Sequence[str], tools: Sequence[ToolCard], *, grows: bool) -> str:
    """Make one call under the schema of the first role that has one, and describe the answer.

    :raises AgentFlowError: if the model can't be used, or its answer is not what the schema says.
    """
    wanted = {role: role_schema(role, tools, grows=grows) for role in roles if tools}
    role, role_reply = next(
        ((role, role_reply) for role, role_reply in wanted.items() if role_reply), ("", None)
    )
    if role_reply is None:
        question = Message("user", (TextPart("Reply with the single word: ready"),))
        completion = await model.complete(Call(role="check", messages=(question,), reply=str))
        return f"answered {completion.text.strip()[:_SHOWN]!r}, {_tokens(completion.usage)} tokens"
    kind, schema = role_reply
    question = Message("user", (TextPart(f"Invent an example of a {kind.__name__}, as short as possible."),))
    try:
        answered = await model.complete(Call(role="check", messages=(question,), reply=kind, schema=schema))
    except ModelFailure as failure:
        if failure.kind.is_temporary:
            raise
        raise ConfigurationError(
            f"does not obey the schema of the {role}: {failure}; use a server with structured output (json_schema), or a "
            f"stronger model"
        ) from failure
    looser = model.statistics().fallbacks
    how = "the server refused its schema, so the prompt describes it" if looser else "under its schema"
    return f"answered as the {role}, {how}, {_tokens(answered.usage)} tokens"


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


async def _try_reward(
    checked: _Checked, assignment: Assignment, judge: OpenModel | None, report_line: Say
) -> None:
    """Score the reference answer of the first task."""
    task = assignment.tasks[0]
    answer = task.references[0] if task.references else ""
    try:
        name, score, failure = await _reward_of(checked, assignment, judge, answer)
    except AgentFlowError as error:
        report_line("reward", False, str(error))
        return
    if failure:
        # A function may need more of an episode than its answer; the trial has one.
        is_custom = ":" in name or checked.own_agent
        report_line(
            "reward", None if is_custom and checked.training is not None else False, f"{name}: {failure}"
        )
        return
    text = f"{name}: {score:g} for the reference answer of task {task.id}, {answer[:_SHOWN]!r}"
    report_line("reward", True if score else None, text)


async def _reward_of(
    checked: _Checked, assignment: Assignment, judge: OpenModel | None, answer: str
) -> tuple[str, float, str]:
    """Return the name of the reward, the score of an answer to the first task, and the reason of a failure."""
    task, spec = assignment.tasks[0], getattr(checked.training, "reward", None)
    if spec is None:
        metric = make_metric(assignment.metric, options=assignment.options, judge=judge)
        scored = await metric.score(answer, task)
        return assignment.metric, scored.score, "" if scored.failure is None else scored.failure.message
    from agentflow.gateway import EpisodeOutcome
    from agentflow.tuner.judges import Judged, make_judge

    reward_judge = make_judge(spec, model=judge)
    if reward_judge.needs_sandbox:
        return reward_judge.name, 0.0, ""
    await reward_judge.prepare([task])
    outcome = await reward_judge.judge(Judged(task=task, outcome=EpisodeOutcome(answer=answer)))
    reward = outcome.reward
    score = sum(reward.values()) if isinstance(reward, dict) else reward
    return reward_judge.name, score or 0.0, outcome.failure or ""


_PHASES = {
    "loading": ("policy", "loaded"),
    "engine": ("engine", "started with the weights of the policy"),
    "rollouts": ("episode", ""),
    "step": ("step", "forward, backward and optimizer; it is not kept"),
    "publication": ("publish", "the engine has the new weights"),
    "validation": ("validate", "one episode of a held-out task"),
    "writing": ("save", "checkpoint written"),
}
"""Part and text of each phase of a trial."""


async def _try_training(config: "TrainConfig", report_line: Say) -> None:
    """Run the training small, and print the seconds of its phases, its memory, and the time of the whole run."""
    from agentflow.learner import TrainRun, TrialResult, try_training
    from agentflow.tuner import TuneConfig, tune_run

    unable = ""
    if config.backbone == "debug":
        unable = "backbone=debug loads no policy"
    elif config.schedule.replay is not None:
        unable = "stored rollouts are replayed; nothing is sampled"
    elif isinstance(config, TuneConfig) and not config.solve:
        unable = "clients play the episodes"
    if unable:
        report_line("trial", None, f"left out: {unable}")
        return
    reported_phases: list[str] = []

    def report(phase: str, trial: TrialResult) -> None:
        reported_phases.append(phase)
        name, text = _PHASES[phase]
        seconds = trial.seconds[phase]
        if phase == "rollouts":
            rate = trial.sampled / seconds if seconds else 0.0
            text = f"{trial.sampled} tokens sampled, {rate:.1f} per second, reward {trial.reward or 0.0:g}"
        report_line(name, True, f"{seconds:.1f} s: {text}", seconds=seconds)

    def make(small: "TrainConfig") -> TrainRun:
        return tune_run(small) if isinstance(small, TuneConfig) else TrainRun(small)

    try:
        trial = await try_training(config, make, report)
    except Exception as error:  # boundary: a part that does not work is one line, whatever raised
        phase = next((name for phase, (name, _) in _PHASES.items() if phase not in reported_phases), "trial")
        cause = unwrap_group(error)
        report_line(phase, False, str(cause) if isinstance(cause, AgentFlowError) else error_line(cause))
        return
    memory = {
        "trainer": trial.trainer_bytes,
        "engine": trial.engine_bytes,
        "trainer on the GPU": trial.gpu_bytes,
    }
    shown = ", ".join(f"{name} {size / _GIB:.1f} GiB" for name, size in memory.items() if size)
    report_line(
        "memory", True, f"{shown} at the peak",
        trainer_bytes=trial.trainer_bytes, engine_bytes=trial.engine_bytes, gpu_bytes=trial.gpu_bytes,
    )  # fmt: skip
    estimate = trial.estimate(config)
    if estimate is None:
        report_line("time", None, "unknown: set schedule.steps")
        return
    steps, least, most = estimate
    episodes = config.schedule.tasks_per_step * config.schedule.episodes_per_task
    text = f"{steps} steps of {episodes} episodes: {duration_text(least)} to {duration_text(most)}"
    ranges = "episodes at full speed side by side, or one after the other; longer answers take longer"
    report_line("time", True, f"{text} ({ranges})", steps=steps, seconds_least=least, seconds_most=most)
