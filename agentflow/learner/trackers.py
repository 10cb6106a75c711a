# pyright: reportUnknownMemberType=false, reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Packages of trackers are untyped, and optional.
"""Trackers of the figures of training steps. The console and JSON lines need no further package. See docs/trackers.md."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from fnmatch import fnmatchcase
from pathlib import Path
from time import time
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import read_file
from agentflow._private_files import make_private_folder, open_private, write_private
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.settings import Section
from agentflow.telemetry import get_logger

__all__ = [
    "METRICS",
    "Tracker",
    "TrackerName",
    "TrackerSettings",
    "Trackers",
    "open_trackers",
    "read_figures",
]


class Jsonl:
    """Appends a line for each step, atomically. Non-finite numbers are `null`."""

    def __init__(self, path: Path, after: int = -1) -> None:
        """:param after: last valid step; lines of later steps are moved to a separate file."""
        self._path = path
        make_private_folder(path.parent)
        _cut(path, after)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a line."""
        line = msgspec.json.encode({"step": step, **figures}) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(f"{self._path}: only {written} of {len(line)} bytes could be written")
        except OSError:
            os.ftruncate(self._file, size)
            raise
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_figures(path: Path) -> list[dict[str, float | None]]:
    """Return the lines of a figures file, each with its `step`; a line truncated by a crash is skipped. See docs/trackers.md."""
    return [figures for _, figures in _lines(read_file(path, path.parent))]


def _lines(data: bytes) -> list[tuple[bytes, dict[str, float | None]]]:
    entries: list[tuple[bytes, dict[str, float | None]]] = []
    for line in data.splitlines():
        try:
            entries.append((line, msgspec.json.decode(line, type=dict[str, float | None])))
        except DECODE_ERRORS:
            continue
    return entries


def _cut(path: Path, after: int) -> None:
    """Move the lines of steps that will be repeated to a separate file."""
    if not path.exists():
        return
    lines = _lines(data := path.read_bytes())
    kept = [line for line, figures in lines if (figures.get("step") or 0) <= after]
    gone = [line for line, figures in lines if (figures.get("step") or 0) > after]
    whole = b"".join(line + b"\n" for line in kept)
    if whole == data:
        return
    if gone:
        with open_private(path.with_suffix(".set-aside.jsonl"), "ab") as aside:
            aside.write(b"".join(line + b"\n" for line in gone))
    new = path.with_suffix(".new")
    write_private(new, whole)
    new.replace(path)


logger = get_logger("agentflow.train")

METRICS = "metrics.jsonl"
"""File of figures in the folder of a run."""


class Tracker(Protocol):
    """Receives the figures of steps."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Store the figures of a step. Steps come in order, each once."""
        ...

    def close(self) -> None:
        """Flush and release all resources."""
        ...


class Trackers:
    """Several trackers as one. Errors of a tracker are logged; they affect neither the others nor the training."""

    def __init__(self, trackers: Mapping[str, Tracker], after: int = -1) -> None:
        """:param after: last step that they already have."""
        self._trackers = dict(trackers)
        self._last = after

    @property
    def names(self) -> Sequence[str]:
        """Names of the trackers."""
        return list(self._trackers)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Store the figures of a step.

        :raises ValueError: if the step was logged before: all figures of a step are given at once.
        """
        if step <= self._last:
            raise ValueError(
                f"step {step} comes after step {self._last}: steps are logged in order, each once"
            )
        self._last = step
        for name, tracker in self._trackers.items():
            try:
                tracker.log(step, figures)
            except Exception as error:  # no step is lost because of its figures: full disk, service down
                logger.warning("a tracker failed", tracker=name, step=step, error=str(error))

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as error:  # same as above
                logger.warning("a tracker failed", tracker=name, error=str(error))


ServiceName: TypeAlias = Literal["mlflow", "swanlab", "trackio", "wandb"]
"""Name of a service, as of its package."""
TrackerName: TypeAlias = Literal["console", "jsonl", "tensorboard", ServiceName]
"""Name of a tracker."""


class TrackerSettings(Section):
    """Trackers of the figures of steps. See docs/trackers.md."""

    use: tuple[TrackerName, ...] = ("console", "jsonl")
    """Trackers to use: console, jsonl, tensorboard, mlflow, swanlab, trackio, wandb."""
    console_figures: tuple[str, ...] = (
        "reward/mean",
        "validation/*",
        "step/loss",
        "step/gradient_norm",
        "engine/k3",
        "groups/flat_share",
    )
    """Figures shown on the console, by name; `*` matches anything."""
    project: str = "agentflow"
    """Project name at mlflow, swanlab, trackio and wandb."""
    name: str | None = None
    """Run name there; `None`: the name of the run's folder."""
    online: bool = False
    """Send to the services of mlflow, swanlab and wandb as the run proceeds; otherwise keep the data in the run's folder."""


def open_trackers(settings: TrackerSettings, folder: Path, after: int = -1) -> Trackers:
    """Open the trackers of a run. See docs/trackers.md.

    :param after: last step of a resumed run; figures of later steps are discarded.
    :raises ConfigurationError: if the package of a tracker is missing; one line.
    """
    make_private_folder(folder)
    opened: dict[str, Tracker] = {}
    try:
        for name in dict.fromkeys(settings.use):
            opened[name] = _open(name, settings, folder, after)
    except BaseException:
        Trackers(opened).close()
        raise
    return Trackers(opened, after)


def _open(name: TrackerName, settings: TrackerSettings, folder: Path, after: int) -> Tracker:
    match name:
        case "console":
            return Console(settings.console_figures)
        case "jsonl":
            return Jsonl(folder / METRICS, after)
        case "tensorboard":
            return TensorBoard(folder, after)
        case _:
            return Service(name, settings, folder, after)


class Console:
    """Logs selected figures in one line."""

    def __init__(self, shown: Sequence[str]) -> None:
        """:param shown: names of the figures, in order; `*` matches anything."""
        self._shown = shown

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures."""
        names = [name for pattern in self._shown for name in sorted(figures) if fnmatchcase(name, pattern)]
        fields = {name: float(f"{figures[name]:.4g}") for name in dict.fromkeys(names)}
        logger.log(logging.INFO, "step", step=step, **fields)

    def close(self) -> None:
        """Do nothing."""


class TensorBoard:
    """Writes curves for TensorBoard to `tensorboard/` of the run: `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path, after: int) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise ConfigurationError(missing_extra("trackers.use: tensorboard", "train")) from None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close its file."""
        self._writer.close()


class Service:
    """Run at a service that can't delete steps: a repeated step is not sent again."""

    def __init__(self, name: "ServiceName", settings: "TrackerSettings", folder: Path, after: int) -> None:
        self._sent = _Sent(folder / f"{name}.json", after)
        title = settings.name or folder.resolve().name
        try:
            with redirect_stdout(sys.stderr):  # They print, and stdout may be JSON output.
                self._run, run_id = _SERVICES[name](settings, folder, title, self._sent.state.run)
        except ImportError:
            remedy = f"pip install {name}, or leave it out"
            raise ConfigurationError(f"trackers.use: {name} is not installed; {remedy}") from None
        except Exception as error:  # boundary: each service has errors of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigurationError(f"trackers.use: {name} can't begin: {reason}") from None
        self._sent.belongs_to(run_id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures, unless the step was sent before."""
        if self._sent.is_new(step):
            self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Finish the run."""
        with redirect_stdout(sys.stderr):
            self._run.finish()


def _open_trackio(settings: "TrackerSettings", folder: Path, title: str, run_id: str) -> tuple[Any, str]:
    import trackio

    del folder
    # Trackio continues the run of a name.
    resume = "allow" if run_id else "never"
    return trackio.init(project=settings.project, name=title, resume=resume, embed=False), title


def _open_wandb(settings: "TrackerSettings", folder: Path, title: str, run_id: str) -> tuple[Any, str]:
    import wandb

    run = wandb.init(
        project=settings.project,
        name=title,
        id=run_id or None,
        resume="allow",
        mode="online" if settings.online else "offline",
        dir=str(folder),
        settings=wandb.Settings(console="off", silent=True),
    )
    return run, str(run.id)


def _open_swanlab(settings: "TrackerSettings", folder: Path, title: str, run_id: str) -> tuple[Any, str]:
    from swanlab import Settings, init

    run = init(
        project=settings.project,
        name=title,
        id=run_id or None,
        resume="allow",
        mode="online" if settings.online else "offline",
        log_dir=str(folder / "swanlab"),
        settings=Settings(interactive=False, terminal=Settings.Terminal(proxy_type="none")),
    )
    return run, str(run.id)


class _MlflowRun:
    """MLflow's client with the two calls of the other services."""

    def __init__(self, client: Any, run_id: str) -> None:  # noqa: ANN401 - the package is optional
        self._client = client
        self._id = run_id

    def log(self, figures: Mapping[str, float], *, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in figures.items()])

    def finish(self) -> None:
        self._client.set_terminated(self._id)


def _open_mlflow(settings: "TrackerSettings", folder: Path, title: str, run_id: str) -> tuple[Any, str]:
    # A run that stays in its folder reports to nobody.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    client = MlflowClient(None if settings.online else f"sqlite:///{folder.resolve() / 'mlflow.db'}")
    if run_id:
        client.update_run(run_id, status="RUNNING")
        return _MlflowRun(client, run_id), run_id
    experiment = client.get_experiment_by_name(settings.project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(settings.project)
    run_id = str(client.create_run(experiment_id, run_name=title).info.run_id)
    return _MlflowRun(client, run_id), run_id


_SERVICES: Mapping["ServiceName", Callable[["TrackerSettings", Path, str, str], tuple[Any, str]]] = {
    "mlflow": _open_mlflow,
    "swanlab": _open_swanlab,
    "trackio": _open_trackio,
    "wandb": _open_wandb,
}
"""Functions that begin a run, or continue the one with an id; they return it and its id."""


class _SentState(Struct):
    run: str = ""
    step: int = -1


class _Sent:
    """Number of the last step sent to a service, and the run's id there."""

    def __init__(self, path: Path, after: int) -> None:
        """:param after: last step of a resumed run; a new run ignores what was sent before."""
        self._path = path
        self.state = _SentState()
        if after >= 0 and path.exists():
            try:
                self.state = msgspec.json.decode(path.read_bytes(), type=_SentState)
            except DECODE_ERRORS as error:
                remedy = "remove it, to send all steps again"
                raise ConfigurationError(f"{path}: can't be read: {decode_reason(error)}; {remedy}") from None

    def belongs_to(self, run: str) -> None:
        """Store the run's id at the service."""
        self.state.run = run
        self._keep()

    def is_new(self, step: int) -> bool:
        """Return true if the step was not sent yet, and count it as sent."""
        if step <= self.state.step:
            return False
        self.state.step = step
        self._keep()
        return True

    def _keep(self) -> None:
        new = self._path.with_suffix(".new")
        write_private(new, msgspec.json.encode(self.state))
        new.replace(self._path)
