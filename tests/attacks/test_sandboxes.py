"""Attacks from inside of one sandbox are contained, for every kind of user and every process that can attack."""

from typing import cast

import pytest

from tests.attacks._sandboxes import (
    ATTACKS,
    POWERS_OF_ROOT,
    POWERS_WITHOUT_RANGE,
    ROLES,
    Role,
    attack_sandboxes,
)
from tests.attacks._table import Attack, not_contained
from tests.runtimes.process.conftest import KINDS, Kind, Users

MODULE = "tests.attacks.sandbox_run"
CATEGORIES = tuple(dict.fromkeys(attack.category for attack in ATTACKS))
pytestmark = [pytest.mark.timeout(500), pytest.mark.promise("attacks:sandbox")]


def table_for(role: Role, kind: Kind = "the current user") -> list[Attack]:
    """Return the attacks of a role: some reach only what belongs to the sandbox."""
    own = POWERS_OF_ROOT if role == "root" else frozenset[str]()
    if kind == "a user without a range of ids":
        own |= POWERS_WITHOUT_RANGE
    return [attack for attack in ATTACKS if attack.id not in own]


async def test_no_attack_leads_out_of_a_session() -> None:
    seen = await attack_sandboxes(ATTACKS, ["session"])
    assert not_contained(table_for("session"), seen["session"]) == {}


@pytest.mark.soak
@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_leads_out_of_a_sandbox(users: Users, kind: Kind, role: Role, category: str) -> None:
    report = cast("dict[str, dict[str, str]]", users.report(MODULE, kind))
    if role == "root" and role not in report:
        assert kind == "a user without a range of ids"
        return
    table = [attack for attack in table_for(role, kind) if attack.category == category]
    assert not_contained(table, report[role]) == {}
