"""Form of the attack tables."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack and the observation that shows that it was contained."""

    id: str
    """Name, unique in the battery: `category: short name`."""
    category: str
    """Category, the name of its table."""
    aim: str
    """Goal of the attacker."""
    code: str
    """Program, query, address or message."""
    seen: str
    """Pattern that the whole observation must match."""
    soak: bool = False
    """Long or costly: only in the long form."""


def attacks(category: str, table: Mapping[str, tuple[str, str, str]], *, soak: bool = False) -> list[Attack]:
    """Return the attacks of a table `name: (aim, code, seen)`."""
    return [
        Attack(id=f"{category}: {name}", category=category, aim=aim, code=code, seen=seen, soak=soak)
        for name, (aim, code, seen) in table.items()
    ]


def not_contained(table: Iterable[Attack], seen: Mapping[str, str]) -> dict[str, str]:
    """Return the observation of each attack of the table that does not match its pattern."""
    found = {attack.id: seen.get(attack.id, "not tried") for attack in table}
    patterns = {attack.id: attack.seen for attack in table}
    return {
        id: observation[:500]
        for id, observation in found.items()
        if not re.fullmatch(patterns[id], observation, re.DOTALL)
    }


def within(seconds: float, attempt: Callable[[], str]) -> str:
    """Return the outcome of an attack that may hang: `hung` after this time, and the name of an error that it raised."""
    outcomes: list[str] = []

    def run() -> None:
        try:
            outcomes.append(attempt())
        except Exception as error:  # boundary: any error of an attack is its outcome
            outcomes.append(f"raised {type(error).__name__}: {error}")

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcomes[0] if outcomes else "hung"
