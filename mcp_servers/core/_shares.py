"""Division of a server's capacity among its clients: reserves and quotas."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

RESERVED = 8
"""Units of a limit that are kept free for each other client; together at most half of the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """Limits of one client. `None`: no limit but the server's."""

    sessions: int | None = None
    """Maximum number of its live sessions."""
    calls: int | None = None
    """Maximum number of its concurrent calls per backend."""


class Shares:
    """Counts the used units of a limit by client.

    A client may use everything except the unused reserves of the others, so a single busy client has almost the whole
    server, and every other client still gets its first units at once. Without known clients there are no reserves.

    Example::

        shares = Shares(100, {"trainer": None, "evaluator": 10})
        shares.full("trainer")  # None: there is room
        shares.take("trainer")
    """

    def __init__(self, limit: int | None, quotas: Mapping[str, int | None]) -> None:
        """:param limit: maximum of all clients together; `None`: no limit.
        :param quotas: the known clients, each with its own maximum, if any.
        """
        self._limit = limit
        self._quotas = quotas
        reserve = 0
        if limit is not None and len(quotas) > 1:
            reserve = min(RESERVED, limit // (2 * len(quotas)))
        self._reserves = {
            client: reserve if quota is None else min(reserve, quota) for client, quota in quotas.items()
        }
        self._free_reserves = sum(self._reserves.values())
        self._total = 0
        self._used: Counter[str] = Counter()

    def full(self, client: str) -> int | None:
        """Return the number of units at which the client has no room for another one; `None` if it has."""
        used, quota = self._used[client], self._quotas.get(client)
        if quota is not None and used >= quota:
            return quota
        if self._limit is None or self._in_reserve(client, used):
            return None
        others = self._free_reserves
        return None if self._total + others < self._limit else self._limit - others

    def take(self, client: str) -> None:
        """Count one more unit, for which there must be room."""
        self._free_reserves -= self._in_reserve(client, self._used[client])
        self._used[client] += 1
        self._total += 1

    def give(self, client: str) -> None:
        """Count one unit less."""
        self._used[client] -= 1
        self._total -= 1
        if not self._used[client]:
            del self._used[client]
        self._free_reserves += self._in_reserve(client, self._used[client])

    def _in_reserve(self, client: str, used: int) -> bool:
        """Return whether the unit after `used` belongs to the reserve of the client."""
        return used < self._reserves.get(client, 0)
