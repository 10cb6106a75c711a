"""Every attempt to escape from a sandbox is contained for every kind of user, and the host is unchanged."""

import re
from typing import cast

import pytest

from tests.runtimes.process.conftest import KINDS, Kind, Users
from tests.runtimes.process.escape_run import PROBES, key
from tests.runtimes.process.escapes import ATTEMPTS, Attempt

MODULE = "tests.runtimes.process.escape_run"
pytestmark = pytest.mark.timeout(500)


def of_report(users: Users, kind: Kind, part: str) -> dict[str, str]:
    return cast("dict[str, dict[str, str]]", users.report(MODULE, kind))[part]


@pytest.mark.promise("containment:attempts")
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=key)
@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_is_contained(users: Users, kind: Kind, attempt: Attempt) -> None:
    seen = of_report(users, kind, "seen")[key(attempt)]
    assert re.fullmatch(attempt.seen, seen, re.DOTALL), seen


@pytest.mark.promise("containment:attempts")
@pytest.mark.parametrize("attempt", [a for a in ATTEMPTS if a.outside is not None], ids=key)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_attempt_succeeds_outside(users: Users, kind: Kind, attempt: Attempt) -> None:
    assert of_report(users, kind, "outside")[key(attempt)] == attempt.outside


@pytest.mark.promise("containment:neighbours")
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_sandbox_learns_nothing_about_another(users: Users, kind: Kind, probe: str) -> None:
    seen = of_report(users, kind, "probes")[probe]
    assert re.fullmatch(PROBES[probe][1], seen), seen


@pytest.mark.promise("containment:host-unchanged")
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_is_unchanged(users: Users, kind: Kind) -> None:
    assert of_report(users, kind, "before") == of_report(users, kind, "after")


@pytest.mark.promise("containment:users")
def test_each_kind_of_user_was_tried(users: Users) -> None:
    single_users = [bool(of_report(users, kind, "single_user")) for kind in KINDS[1:]]
    assert single_users == [False, True]
