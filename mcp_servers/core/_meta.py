"""Our own keys in the `_meta` of MCP messages. Light: clients that know us import it."""

from typing import Final

__all__ = ["CARD_KEY", "ERROR_KEY", "TIMEOUT_KEY", "UNUSABLE_KEY"]

ERROR_KEY: Final = "agentflow/error"
"""Where a failed call's `kind`, `message` and `data` stand in the `_meta` of its result. Not in
`structuredContent`: some clients hold that against the output schema even when the call failed."""

TIMEOUT_KEY: Final = "agentflow/timeout"
"""Where a request says how many seconds its call may take."""

CARD_KEY: Final = "agentflow/card"
"""Where a listed tool says what it can't do, how it is best used, and what good calls are like."""

UNUSABLE_KEY: Final = "agentflow/unusable"
"""Where a listed tool says why it can't work on this server."""
