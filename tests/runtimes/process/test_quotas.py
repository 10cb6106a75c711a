"""One sandbox can't use up the quotas that the kernel keeps per user."""

from pathlib import Path
from typing import cast

import pytest

from runtimes.process.linux import _quotas
from tests.runtimes.process.conftest import KINDS, Kind, Users

MODULE = "tests.runtimes.process.quota_run"
TIMERS, TERMINALS = _quotas.LIMITS["SIGPENDING"], 64
HOST = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text(encoding="utf-8"))


def taken(users: Users, kind: Kind) -> dict[str, list[int]]:
    """Return the inotify instances, timers and terminals that each could take."""
    return cast("dict[str, list[int]]", users.report(MODULE, kind))


@pytest.mark.promise("limits:quotas")
@pytest.mark.parametrize("kind", KINDS)
def test_quotas_of_the_kernel_are_left_to_the_host(users: Users, kind: Kind) -> None:
    assert taken(users, kind)["host"] == [1, 1, 1]


@pytest.mark.promise("limits:quotas")
@pytest.mark.parametrize("kind", KINDS[:2])
def test_quotas_of_the_kernel_are_left_to_other_sandboxes(users: Users, kind: Kind) -> None:
    seen = taken(users, kind)
    watches, *others = seen["first"]
    assert watches <= max(8, HOST // 8)
    assert others == [TIMERS, TERMINALS]
    assert seen["second"] == seen["first"]
    # Its terminals are those of its sandbox.
    assert seen["root of the second"] == [watches, TIMERS, 0]


@pytest.mark.promise("limits:quotas")
def test_without_a_range_of_ids_sandboxes_share_half_of_the_user_s_inotify_instances(users: Users) -> None:
    first, second = (taken(users, KINDS[2])[name] for name in ("first", "second"))
    assert 0 < first[0] <= max(8, HOST // 2)
    assert first[1:] == second[1:] == [TIMERS, TERMINALS]


@pytest.mark.promise("limits:quotas")
@pytest.mark.parametrize("kind", KINDS)
def test_locked_memory_and_message_queues_are_limited(users: Users, kind: Kind) -> None:
    assert taken(users, kind)["limits"] == [_quotas.LIMITS["MEMLOCK"], _quotas.LIMITS["MSGQUEUE"]]
