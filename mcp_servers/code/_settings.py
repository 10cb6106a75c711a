"""Settings of the code backend."""

from pydantic import Field, SecretStr

from agentflow.settings import Section
from mcp_servers.core._running import RunSettings

MIB = 1024 * 1024


class InstallSettings(Section):
    """Sources and limits of `code_install`. Only the server can set them."""

    index_url: SecretStr
    """Package index for the wheels; the URL may contain a password."""
    packages: frozenset[str] | None = None
    """Packages that may be requested; by default any. Dependencies are always allowed."""
    max_bytes: int = Field(default=200 * MIB, gt=0)
    """Maximum total size of the wheels of one call."""
    timeout: float = Field(default=120.0, gt=0)
    """Time limit of the download in seconds."""


class CodeSettings(RunSettings):
    """Settings of the code backend."""

    images: int = Field(default=10, ge=0)
    """Maximum number of images shown in a result; the others are kept as resources."""
    rows: int = Field(default=100, ge=1)
    """Default number of rows that `code_sql` returns."""
    install: InstallSettings | None = None
    """Enables `code_install`; without it, installing is denied."""
