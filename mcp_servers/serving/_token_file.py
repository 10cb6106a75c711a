"""A token for a server that was given none, in a file that only this user can read."""

import os
import secrets
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agentflow.errors import ConfigurationError

__all__ = ["made_token", "token_path"]


def token_path(port: int, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the token of this user's server on that port lies."""
    state = environment.get("XDG_STATE_HOME") or Path(
        environment.get("HOME") or Path.home(), ".local", "state"
    )
    return Path(state, "agentflow", f"token-{port}")


@contextmanager
def made_token(path: Path) -> Generator[str]:
    """A new token, kept at `path` while the server runs.

    :raises ConfigurationError: if it can't be written.
    """
    token = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made readable for nobody else from the start, then moved: there is no moment at which others could read it.
        descriptor, draft = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the token can't be written ({error.strerror}): pass --token"
        ) from None
    try:
        yield token
    finally:
        if path.exists() and path.read_text(encoding="utf-8").strip() == token:
            path.unlink()
