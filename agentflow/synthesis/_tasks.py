"""Verified tasks from trees: derived by the kind that the settings name, and kept if their check passes."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.engine import BranchSandboxes
from agentflow.errors import ConfigurationError
from agentflow.journal import Page, Run
from agentflow.runs import sandbox_settings
from agentflow.sandbox import Sandbox
from agentflow.synthesis._attempts import Difficulty, TaskAttemptPort, attempt_task
from agentflow.synthesis._config import DifficultySettings, SynthesisConfig, TaskName
from agentflow.synthesis._seed_result import PairAttempts, SeedResult, TriagedTask
from agentflow.tasks import (
    STATE_KINDS,
    DerivationSettings,
    DocumentPictures,
    InstructionSettings,
    RejectedTask,
    StateTasks,
    StateTaskSettings,
    TaskFinding,
    TaskKind,
    VerifiableTask,
    check_images,
    check_state_tools,
    check_task,
    hidden_settings,
    open_data_analysis,
    open_text2sql,
)
from agentflow.team import Team
from agentflow.trace import Tree, Usage

_NEEDS: Final[Mapping[TaskName, frozenset[str]]] = {
    "text2sql": frozenset({"sql"}),
    "data_analysis": frozenset({"data", "files", "code", "bash"}),
}
"""Backends of which an agent needs a tool."""


def solution_kind(
    config: SynthesisConfig, sandboxes: BranchSandboxes, team: Team
) -> Callable[[], AbstractAsyncContextManager[TaskKind]] | None:
    """Return what opens the kind of tasks that the settings name; `None` if they name none with solutions.

    :raises ConfigurationError: one line, if it can't work with these settings.
    """
    named = config.task_kind
    if named is None or named not in _NEEDS:
        return None
    backends = _NEEDS[named]
    if backends.isdisjoint(tool.backend for tool in sandboxes.tools.values()):
        raise ConfigurationError(
            f"tasks: {named} needs a tool of the backend {min(backends & {'sql', 'data'})}; add it to available_tools"
        )
    hidden, folder = hidden_settings(named, sandbox_settings(config)[0])
    settings = derivation_settings(config)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[TaskKind]:
        async with Sandbox(hidden) as sandbox:
            if named == "data_analysis":
                opens = open_data_analysis(sandbox, team, settings, folder)
            else:
                opens = open_text2sql(sandbox, team.generator, settings)
            async with opens as kind:
                yield kind

    return opened


_ROLE: Final = "generator"


async def task_kind(
    config: SynthesisConfig, sandbox: Sandbox, sandboxes: BranchSandboxes, team: Team, run: Run
) -> TaskKind | None:
    """Return the kind of tasks that the settings name, if its solutions are states or pictures; otherwise `None`.

    :raises ConfigurationError: one line, if a tool or a model that it needs is missing.
    """
    named = config.task_kind
    if named == "document":
        return _document_pictures(config, team, run)
    kind = STATE_KINDS.get(named or "")
    if kind is None:
        return None
    await check_state_tools(named or "", sandbox, sandboxes)
    return StateTasks(
        kind.reader(),
        executor=team.executor,
        sandboxes=sandboxes,
        author=team.generator,
        settings=StateTaskSettings(
            max_tasks=config.max_selected_traj,
            min_steps=config.min_depth,
            instruction=InstructionSettings(
                max_drafts=config.max_drafts, tips=config.synthesis_tips, examples=config.examples
            ),
        ),
    )


def _document_pictures(config: SynthesisConfig, team: Team, run: Run) -> TaskKind:
    check_images()
    for role in ("generator", "reader"):
        if not config.model_for(role).vision:
            raise ConfigurationError(
                f"tasks: document needs a {role} that sees pictures; set {role}_model to a model with vision=true"
            )
    return DocumentPictures(team, derivation_settings(config), run.blobs)


def derivation_settings(config: SynthesisConfig) -> DerivationSettings:
    """Return the settings of kinds with a solution or an answer."""
    return DerivationSettings(
        max_tasks=config.max_selected_traj,
        tips=config.synthesis_tips,
        seed_description=config.seed_description,
        examples=config.examples,
    )


async def derive_tasks(
    tree: Tree,
    kind: TaskKind,
    page: Page,
    difficulty: DifficultySettings | None = None,
    agent: TaskAttemptPort | None = None,
) -> SeedResult:
    """Derive tasks from a tree and check each; calls and verdicts recorded on the page are not repeated.

    :param agent: tries the accepted tasks, if the settings ask for attempts.
    :raises RunStopped: if the run can't continue; the page has the results so far.
    """
    derived = await kind.derive(tree, page)
    checks = await together(partial(check_task, task, kind, page) for task in derived.tasks)
    pairs = list(zip(derived.tasks, checks, strict=True))
    failed = [_rejected(task, check.findings) for task, check in pairs if not check.accepted]
    accepted = [task for task, check in pairs if check.accepted]
    result = SeedResult(
        tree=tree,
        tasks=tuple(accepted),
        rejected_tasks=(*derived.rejected, *failed),
        usage={_ROLE: derived.usage},
    )
    if agent is None or difficulty is None or not difficulty.attempts:
        return result
    return await measure_difficulty(result, difficulty, page, agent)


async def measure_difficulty(
    result: SeedResult, settings: DifficultySettings, page: Page, agent: TaskAttemptPort
) -> SeedResult:
    """Return the result with the difficulty of its tasks; those outside the window are triaged."""
    made = await together(
        partial(attempt_task, agent, task, page.section(f"attempt/{task.id}"), settings.attempts)
        for task in result.tasks
    )
    kept: list[VerifiableTask] = []
    triaged: list[TriagedTask] = []
    attempts: list[PairAttempts] = []
    for task, (task_attempts, _) in zip(result.tasks, made, strict=True):
        if not task_attempts:
            kept.append(task)
            continue
        difficulty = Difficulty.of(task_attempts)
        measured = replace(task, difficulty=msgspec.to_builtins(difficulty))
        reason = difficulty.triage(settings.window)
        if reason is not None:
            triaged.append(TriagedTask(measured, reason))
            continue
        kept.append(measured)
        attempts.append(PairAttempts(task.id, task_attempts))
    return replace(
        result,
        tasks=tuple(kept),
        triaged_tasks=tuple(triaged),
        attempts=tuple(attempts),
        usage={**result.usage, "agent": sum((usage for _, usage in made), Usage())},
    )


def _rejected(task: VerifiableTask, findings: tuple[TaskFinding, ...]) -> RejectedTask:
    actions = "\n".join(f"{action.tool} {action.arguments}" for action in task.gold.actions)
    solution = task.gold.answer or actions
    return RejectedTask(kind=task.kind, instruction=task.instruction, solution=solution, findings=findings)
