"""Trackers of other packages, imported on use."""

# pyright: reportUnknownMemberType=false, reportMissingImports=false, reportUnknownVariableType=false
# They are untyped, and optional.

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.errors import ConfigurationError

if TYPE_CHECKING:
    from agentflow.learner.trackers._settings import TrackerSettings


class TensorBoard:
    """Writes curves for TensorBoard to `tensorboard/` of the run: `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path, after: int) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise _missing("tensorboard", "install the extra: pip install 'agentflow[train]'") from None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close its file."""
        self._writer.close()


class Trackio:
    """Writes to Trackio, a local database with a web page."""

    def __init__(self, settings: "TrackerSettings", folder: Path, after: int) -> None:
        try:
            import trackio
        except ImportError:
            raise _missing("trackio", "pip install trackio") from None
        self._sent = _Sent(folder / "trackio.json", after)
        name = settings.name or folder.resolve().name
        resume = "allow" if after >= 0 else "never"
        with redirect_stdout(sys.stderr):  # It prints, and stdout may be JSON output.
            self._run: Any = trackio.init(project=settings.project, name=name, resume=resume, embed=False)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures, unless the step was sent before."""
        if self._sent.is_new(step):
            self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Finish the run."""
        with redirect_stdout(sys.stderr):
            self._run.finish()


class Wandb:
    """Writes to Weights & Biases; offline by default."""

    def __init__(self, settings: "TrackerSettings", folder: Path, after: int) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb", "pip install wandb") from None
        self._sent = _Sent(folder / "wandb.json", after)
        try:
            self._run: Any = wandb.init(
                project=settings.project,
                name=settings.name or folder.resolve().name,
                id=self._sent.run or None,
                resume="allow",
                mode="online" if settings.online else "offline",
                dir=str(folder),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            why = str(error).splitlines()[0]
            raise ConfigurationError(f"trackers.use: wandb can't begin: {why}") from None
        self._sent.belongs_to(str(self._run.id))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures, unless the step was sent before."""
        if self._sent.is_new(step):
            self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class _Sent:
    """Steps already sent to a service that can't delete them: a repeated step is not sent again."""

    def __init__(self, path: Path, after: int) -> None:
        """:param after: last step of a resumed run; a new run ignores what was sent before."""
        self._path = path
        goes_on = after >= 0 and path.exists()
        state: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if goes_on else {}
        self.run: str = state.get("run", "")
        self._step: int = state.get("step", -1)

    def belongs_to(self, run: str) -> None:
        """Store the run's id at the service."""
        self.run = run
        self._keep()

    def is_new(self, step: int) -> bool:
        """Return true if the step was not sent yet, and count it as sent."""
        if step <= self._step:
            return False
        self._step = step
        self._keep()
        return True

    def _keep(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode({"run": self.run, "step": self._step}))
        new.replace(self._path)


def _missing(name: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"trackers.use: {name} is not installed; {remedy}, or leave it out")
