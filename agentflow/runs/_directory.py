"""Directory of a run: its journal, its settings and its control file."""

import os
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias

from agentflow.errors import ConfigurationError
from agentflow.runs._config import RunConfig, render_config

Resume: TypeAlias = Literal["auto", "always", "never"]
"""Handling of an existing run: `auto` resumes it if there is one, `always` requires one, `never` refuses one."""

JOURNAL_FILE = "journal.db"
SETTINGS_FILE = "settings.yaml"
CONTROL_FILE = "control.json"


class RunDirectory:
    """Output directory of a run."""

    def __init__(self, config: RunConfig, folder: Path, resume: Resume) -> None:
        self.folder = folder
        """Path of the directory."""
        self.control = folder / CONTROL_FILE
        """File with the address of the control server while the run is active."""
        self._config = config
        self._resume = resume
        self._own_journal = (folder / JOURNAL_FILE).absolute()

    @property
    def journal(self) -> str:
        """URL of the journal."""
        return self._config.journal or f"sqlite:///{self._own_journal}"

    def prepare(self) -> None:
        """Create the directory.

        :raises ConfigurationError: if it can't be created, or `resume` is `always` and there is no run.
        """
        if self._config.journal is None and not self._own_journal.exists():
            self.check(exists=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"output_dir: {self.folder} can't be created: {error.strerror}; name another"
            ) from None

    def check(self, exists: bool) -> None:
        """Check `resume` against the existence of the run.

        :raises ConfigurationError: if they contradict each other.
        """
        name = f"run {self._config.run_name!r} in {self.folder}"
        if exists and self._resume == "never":
            raise ConfigurationError(
                f"resume: there is a {name} already; name another output_dir, or remove resume=never"
            )
        if not exists and self._resume == "always":
            raise ConfigurationError(f"resume: there is no {name} to resume; check output_dir")

    def write_settings(self) -> None:
        """Write the resolved settings, secrets masked, to `settings.yaml`."""
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
