"""HTTP servers: one core of limits behind every port, for ASGI applications and those of aiohttp. See docs/security.md."""

from agentflow.http_server._bodies import (
    LARGE_BYTES,
    STOPPING,
    BodyRefusedError,
    RequestBodies,
    body_size,
)
from agentflow.http_server._servers import (
    ACCEPTED_AT_ONCE,
    WAITING_CONNECTIONS,
    AsgiServer,
    Connections,
    LimitedConnection,
    cross_site,
    identify,
    max_connections,
    serving,
)

__all__ = [
    "ACCEPTED_AT_ONCE",
    "LARGE_BYTES",
    "STOPPING",
    "WAITING_CONNECTIONS",
    "AsgiServer",
    "BodyRefusedError",
    "Connections",
    "LimitedConnection",
    "RequestBodies",
    "body_size",
    "cross_site",
    "identify",
    "max_connections",
    "serving",
]
