"""Settings of the code backend."""

from pydantic import Field, SecretStr

from agentflow.settings import Section
from mcp_servers.core._running import RunSettings

__all__ = ["CodeSettings", "InstallSettings"]

MIB = 1024 * 1024


class InstallSettings(Section):
    """From where, and how much, `code_install` may install. Only the server's own settings can give it."""

    index_url: SecretStr
    """The package index that wheels are downloaded from; it may hold a password."""
    packages: frozenset[str] | None = None
    """The only packages that may be asked for; without it any. What they depend on is always allowed."""
    max_bytes: int = Field(default=200 * MIB, gt=0)
    """The size of all wheels of one call together."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds for the download."""


class CodeSettings(RunSettings):
    """Settings of the code backend."""

    images: int = Field(default=10, ge=0)
    """How many pictures a result shows; the others are kept as resources."""
    rows: int = Field(default=100, ge=1)
    """How many rows `code_sql` returns unless it is asked for another number."""
    install: InstallSettings | None = None
    """Allows `code_install`; without it installing is denied."""
