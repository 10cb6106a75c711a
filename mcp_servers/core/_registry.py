"""Registry of backends by name; each is imported when it is first used."""

import importlib
from typing import Final

from agentflow.errors import ConfigurationError
from mcp_servers.core._backend import Backend
from mcp_servers.core._failures import did_you_mean

BACKENDS: Final[dict[str, str]] = {
    "bash": "mcp_servers.bash:BashBackend",
    "browser": "mcp_servers.browser:BrowserBackend",
    "code": "mcp_servers.code:CodeBackend",
    "data": "mcp_servers.data:DataBackend",
    "document": "mcp_servers.document:DocumentBackend",
    "files": "mcp_servers.files:FilesBackend",
    "mcp": "mcp_servers.external:ExternalBackend",
    "rag": "mcp_servers.rag:RagBackend",
    "sql": "mcp_servers.sql:SqlBackend",
    "vm": "mcp_servers.vm:VmBackend",
    "web": "mcp_servers.web:WebBackend",
    "world": "mcp_servers.world:WorldBackend",
}
"""Backend name -> module and factory."""


def load_backend(name: str) -> Backend:
    """Create the backend of that name, or from `package.module:Class`.

    :raises ConfigurationError: if there is none; the message suggests the closest name.

    Example::

        ToolTable([load_backend("bash"), load_backend("files")])
    """
    place = BACKENDS.get(name, name)
    module, colon, factory = place.partition(":")
    if not colon:
        raise ConfigurationError(f"no backend {name!r}.{did_you_mean(name, BACKENDS)}")
    try:
        backend = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"backend {name!r} can't be loaded: {error}") from None
    if not isinstance(backend, Backend):
        raise ConfigurationError(f"backend {name!r}: {place} does not create an mcp_servers.Backend")
    return backend
