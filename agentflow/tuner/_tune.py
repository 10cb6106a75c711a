"""Entry points: train the model behind any agent."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct
from pydantic import SecretStr

from agentflow._decoding import DECODE_ERRORS
from agentflow._private_files import make_private_folder, write_private
from agentflow.errors import ConfigurationError
from agentflow.learner import TrainRun
from agentflow.runs import Resume, run_in_place
from agentflow.settings import import_object
from agentflow.trace import Task
from agentflow.tuner._config import TEAM, TuneConfig, load_tune_config
from agentflow.tuner._workflow import Solve
from agentflow.tuner._workflow_rollouts import WorkflowRollouts
from agentflow.tuner.judges import JudgeSpec

SWARM_PORT: Final = 18900
"""Default port of a training with clients."""
SWARM_FILE: Final = "swarm.json"
"""File with the token of clients, in the output folder."""
TuneTasks: TypeAlias = str | PathLike[str] | Iterable[Task] | Mapping[str, Any]
"""A file of tasks, tasks, or that section of the settings."""


def tune(
    solve: Solve | str | None = None,
    tasks: TuneTasks | None = None,
    *,
    validation: TuneTasks | None = None,
    reward: JudgeSpec = None,
    judge: JudgeSpec = None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    config_path: str | PathLike[str] | None = None,
    resume: Resume = "auto",
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any section of the settings, by its name
) -> dict[str, Any]:
    """Train the model behind any agent. Run the same command to resume; a finished run does nothing.

    See docs/tuner.md.

    :param solve: `solve(task, policy)`, sync or async; `module:function`; `team` for our own; `None`: that of the settings.
    :param tasks: file of tasks, tasks, or that section of the settings; `None`: as in the file.
    :param validation: held-out tasks, likewise.
    :param reward: metric by name, `module:function`, a function of answer and task, or one of them for each source of tasks.
    :param judge: another name of `reward`.
    :param agents: agents by name: `{"wolf": {"trained": True}, "villager": {"model_name": "frozen"}}`.
    :param config_path: settings file, JSON or YAML.
    :param resume: continue an existing run: `auto`, `always` or `never`.
    :param overrides: `key=value` settings that override the file.
    :param settings: sections or single settings that override all others: `policy={"model": "…"}`, `seed=1`.
    :return: `steps`, `version`, `figures` of the last step, `output_dir`, and `policy`, the folder of the trained model.
    :raises ConfigurationError: if a setting can't be used; nothing was started.
    :raises RunStopped: if it ended early; the same command resumes.
    """
    work = partial(
        atune,
        solve,
        tasks,
        validation=validation,
        reward=reward,
        judge=judge,
        agents=agents,
        config_path=config_path,
        resume=resume,
        overrides=overrides,
        **settings,
    )
    return run_in_place(work)


async def atune(
    solve: Solve | str | None = None,
    tasks: TuneTasks | None = None,
    *,
    validation: TuneTasks | None = None,
    reward: JudgeSpec = None,
    judge: JudgeSpec = None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    config_path: str | PathLike[str] | None = None,
    resume: Resume = "auto",
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any section of the settings, by its name
) -> dict[str, Any]:
    """Train the model behind any agent; the asynchronous form of `tune`. See docs/tuner.md."""
    values: dict[str, Any] = {**settings, **_section("tasks", tasks), **_section("validation", validation)}
    if isinstance(solve, str):
        values["solve"], solve = solve, None
    if agents is not None:
        values["agents"] = {name: dict(rules) for name, rules in agents.items()}
    config = load_tune_config(None if config_path is None else fspath(config_path), overrides, values)
    if reward is not None and judge is not None:
        raise ConfigurationError("judge: there is a reward as well; leave out one of them")
    run = tune_run(
        config,
        solve,
        reward=judge if reward is None else reward,
        tasks=_task_list(tasks),
        validation=_task_list(validation),
        resume=resume,
    )
    return (await run.run()).record()


def tune_run(
    config: TuneConfig,
    solve: Solve | None = None,
    *,
    reward: JudgeSpec = None,
    tasks: Sequence[Task] | None = None,
    validation: Sequence[Task] | None = None,
    resume: Resume = "auto",
    say: Callable[[str], None] = print,
) -> TrainRun:
    """Return a tuning run, whose `run` trains; see docs/tuner.md.

    :param solve: the agent; `None`: that of the settings.
    :raises ConfigurationError: if there is no agent.
    """
    agent = solve or (TEAM if config.solve == TEAM else find_solve(config.solve, config.agentjet))
    rollouts = WorkflowRollouts(config, agent, config.reward if reward is None else reward)
    return TrainRun(config, tasks=tasks, validation=validation, resume=resume, say=say, rollouts=rollouts)


def serve_run(
    config: TuneConfig,
    *,
    reward: JudgeSpec = None,
    tasks: Sequence[Task] | None = None,
    validation: Sequence[Task] | None = None,
    resume: Resume = "auto",
    say: Callable[[str], None] = print,
) -> TrainRun:
    """Return a tuning run whose episodes are played by clients; see docs/swarm.md.

    Without tasks, clients bring their own, each with a unique id, until `schedule.steps` are made. Without a worker token in the settings, one is made and kept in `OUTPUT_DIR/swarm.json`.

    :param say: receives the address.
    :raises ConfigurationError: if that file can't be written.
    """
    if config.backbone == "debug":
        raise ConfigurationError(
            "backbone: debug plays episodes in this process; use agentflow tune, or another backbone"
        )
    if config.branching is not None:
        raise ConfigurationError(
            "branching: the states of clients can't be copied; leave it out, or use agentflow tune"
        )
    config = with_client_access(config)
    settings = config.tasks
    own_tasks = tasks is None and not (settings.data_path or settings.benchmark_name or settings.reader)
    if own_tasks:
        # Each draw is the next group that clients have played; there is no end of tasks.
        tasks = [Task(index=0, id="clients", question="")]
        config = config.model_copy(update={"schedule": config.schedule.model_copy(update={"epochs": None})})
    reward = config.reward if reward is None else reward
    rollouts = WorkflowRollouts(config, None, reward, own_tasks=own_tasks, say=say)
    return TrainRun(config, tasks=tasks, validation=validation, resume=resume, rollouts=rollouts)


def with_client_access(config: TuneConfig) -> TuneConfig:
    """Return settings with a port and a worker token, which stay the same when the run resumes. See docs/swarm.md.

    :raises ConfigurationError: if the token can't be stored.
    """
    gateway = config.gateway
    changes: dict[str, object] = {} if gateway.port else {"port": SWARM_PORT}
    if not gateway.worker_token.get_secret_value():
        changes["worker_token"] = SecretStr(_kept_token(config.output))
    return config.model_copy(update={"gateway": gateway.model_copy(update=changes)})


def _kept_token(folder: Path) -> str:
    """Return the token of an earlier start, or a new one."""
    file = folder / SWARM_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=_SwarmAccess).worker_token
    except FileNotFoundError:
        pass
    except (OSError, *DECODE_ERRORS) as error:
        raise ConfigurationError(
            f"{file}: can't be read: {error}; remove it, or set gateway.worker_token"
        ) from None
    access = _SwarmAccess(worker_token=secrets.token_hex(32))
    try:
        make_private_folder(folder)
        write_private(file, msgspec.json.encode(access))
    except OSError as error:
        raise ConfigurationError(
            f"{file}: can't be written: {error.strerror}; set gateway.worker_token"
        ) from None
    return access.worker_token


class _SwarmAccess(Struct, frozen=True):
    """Content of the file with the token of clients."""

    worker_token: str


def find_solve(reference: str, agentjet: Mapping[str, Any] | None = None) -> Solve:
    """Return the agent that `module:function` or `module->Class` names. See docs/tuner.md.

    :param agentjet: content of AgentJet's file, whose workflows are classes.
    :raises ConfigurationError: if there is none.
    """
    if not reference:
        raise ConfigurationError("solve: there is no agent; write module:function or file.py:function")
    if "->" in reference:
        from agentflow.tuner.agentjet import workflow_agent  # only for files of AgentJet

        return workflow_agent(reference, agentjet)
    try:
        solve = import_object(reference)
    except ConfigurationError as error:
        raise ConfigurationError(f"solve: {error}") from None
    if not callable(solve):
        raise ConfigurationError(f"solve: {reference} is not a function; write module:function")
    return solve


def _section(name: str, tasks: TuneTasks | None) -> dict[str, object]:
    if isinstance(tasks, Mapping):
        return {name: tasks}
    return {name: {"data_path": fspath(tasks)}} if isinstance(tasks, str | PathLike) else {}


def _task_list(tasks: TuneTasks | None) -> Sequence[Task] | None:
    return None if tasks is None or isinstance(tasks, str | PathLike | Mapping) else list(tasks)
