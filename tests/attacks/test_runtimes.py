"""Attacks on snapshots, mounts, control channels and forks are contained, for every kind of user."""

from typing import cast

import pytest

from tests.attacks._table import not_contained
from tests.attacks.runtime_run import ATTACKS, attack_runtime
from tests.runtimes.process.conftest import KINDS, Kind, Users

MODULE = "tests.attacks.runtime_run"
CATEGORIES = tuple(dict.fromkeys(attack.category for attack in ATTACKS))
pytestmark = [pytest.mark.timeout(500), pytest.mark.promise("attacks:runtime")]


async def test_no_archive_message_or_fork_leads_to_another_sandbox() -> None:
    seen = await attack_runtime(soak=False)
    assert not_contained([attack for attack in ATTACKS if not attack.soak], seen) == {}


@pytest.mark.soak
@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_part_of_the_runtime_is_led_astray(users: Users, kind: Kind, category: str) -> None:
    report = cast("dict[str, str]", users.report(MODULE, kind))
    table = [attack for attack in ATTACKS if attack.category == category]
    if category == "forks" and kind == "a user without a range of ids":
        assert not any(attack.id in report for attack in table)
        return
    assert not_contained(table, report) == {}
