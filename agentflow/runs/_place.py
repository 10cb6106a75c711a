"""Where a run lies on disk."""

import os
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias

from agentflow.errors import ConfigurationError
from agentflow.runs._config import RunConfig, render_config

__all__ = ["CONTROL_FILE", "Place", "Resume"]

Resume: TypeAlias = Literal["auto", "always", "never"]
"""Whether a run that exists is gone on with: `auto`: if there is one; `always`: there must be; `never`: there must not."""

JOURNAL_FILE = "journal.db"
SETTINGS_FILE = "settings.yaml"
CONTROL_FILE = "control.json"


class Place:
    """The folder of a run."""

    def __init__(self, config: RunConfig, folder: Path, resume: Resume) -> None:
        self.folder = folder
        """Where the files are."""
        self.control = folder / CONTROL_FILE
        """How the run is reached while it goes on."""
        self._config = config
        self._resume = resume
        self._own_journal = (folder / JOURNAL_FILE).absolute()

    @property
    def journal(self) -> str:
        """The journal's address."""
        return self._config.journal or f"sqlite:///{self._own_journal}"

    def prepare(self) -> None:
        """Make the folder.

        :raises ConfigurationError: if it can't be made, or there is to be a run and is none.
        """
        if self._config.journal is None and not self._own_journal.exists():
            self.check(exists=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"output_dir: {self.folder} can't be made: {error.strerror}; name another"
            ) from None

    def check(self, exists: bool) -> None:
        """Whether it is as wanted that the run exists, or not.

        :raises ConfigurationError: if it is not.
        """
        name = f"run {self._config.run_name!r} in {self.folder}"
        if exists and self._resume == "never":
            raise ConfigurationError(
                f"resume: there is a {name} already; name another output_dir, or leave out resume=never"
            )
        if not exists and self._resume == "always":
            raise ConfigurationError(f"resume: there is no {name} to go on with; check output_dir")

    def describe(self) -> None:
        """Put the resolved settings beside the files, without secrets."""
        settings = self.folder / SETTINGS_FILE
        try:
            descriptor, draft = tempfile.mkstemp(dir=self.folder, prefix=f".{SETTINGS_FILE}-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(render_config(self._config))
            os.replace(draft, settings)
        except OSError as error:
            raise ConfigurationError(
                f"{settings}: can't be written: {error.strerror}; name another output_dir"
            ) from None
