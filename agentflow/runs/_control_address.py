"""Address of the control server of a run, as the run wrote it into its folder."""

from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from agentflow._folder_files import read_file
from agentflow._loopback import is_loopback
from agentflow.journal import is_alive_here
from agentflow.runs._directory import CONTROL_FILE

_MAX_BYTES = 1 << 16


class ControlAddress(Struct, frozen=True):
    """Address of a control server."""

    url: str
    """URL of its endpoint."""
    token: str
    """Token that it accepts."""
    process: str = ""
    """Process that serves it; see `agentflow.journal.this_process`."""

    @property
    def is_own(self) -> bool:
        """It is a living process of this machine; a folder from elsewhere can't name one."""
        try:
            host = urlsplit(self.url).hostname or ""
        except ValueError:
            return False
        return is_loopback(host) and is_alive_here(self.process)


def read_control_address(folder: Path) -> ControlAddress:
    """Return the address in a folder, which may come from elsewhere: ask it only if it is `is_own`.

    See docs/supervisor.md.

    :raises OSError: if there is none, or it can't be read.
    :raises ValueError: if it is damaged.
    """
    body = read_file(folder / CONTROL_FILE, folder, _MAX_BYTES)
    return msgspec.json.decode(body, type=ControlAddress)
