"""verl as a supervised child process: it ends, with Ray, however this process ends."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agentflow.errors import AgentFlowError
from agentflow.learner._policy import OptimizerSettings, PolicySettings
from agentflow.learner._trainer_process import running_trainer, trainer_environment, trainer_folder
from agentflow.learner.verl._settings import VerlSettings, command_arguments


class VerlFailure(AgentFlowError):
    """verl failed or died. One line: the operation and verl's last error."""


@contextmanager
def running_verl(
    policy: PolicySettings, optimizer: OptimizerSettings, settings: VerlSettings
) -> Generator[tuple[Path, threading.Event, Path]]:
    """Start verl; yield the folder of requests, an event that is set when verl ends, and its log.

    :raises ConfigurationError: if the settings can't be used, or the Ray cluster does not answer.
    :raises VerlFailure: if it does not become ready, with its last error.
    """
    python = settings.interpreter()
    settings.check_cluster()
    with trainer_folder(settings.shared_folder) as base:
        log = settings.log or base / "verl.log"
        arguments = command_arguments(policy, optimizer, settings, base)
        command = [str(python), "-m", "verl.trainer.main_ppo", *arguments]
        environment = trainer_environment(base / "code", own_ray=not settings.ray_address)
        with running_trainer(
            "verl", command, environment, base, log, settings.start_seconds, VerlFailure
        ) as ended:
            yield base / "orders", ended, log
