"""Shares: reserves and quotas of clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.core._shares import RESERVED, Shares

CLIENTS: tuple[str, ...] = ("a", "b", "c", "stranger")


def taken(shares: Shares, client: str, times: int) -> int:
    """Take up to that many units, and return how many there were."""
    for number in range(times):
        if shares.full(client) is not None:
            return number
        shares.take(client)
    return times


@pytest.mark.promise("mcp:quota:reserves")
@pytest.mark.parametrize(
    ("limit", "clients", "most"),
    [
        (1024, 2, 1024 - RESERVED),
        (256, 10, 256 - 9 * RESERVED),
        (512, 1, 512),
        (10, 5, 6),
        (3, 2, 3),
        (1, 2, 1),
    ],
)
def test_one_client_gets_all_but_the_reserves_of_the_others_and_each_of_them_its_reserve(
    limit: int, clients: int, most: int
) -> None:
    shares = Shares(limit, dict.fromkeys(map(str, range(clients))))
    assert taken(shares, "0", 2000) == most
    assert shares.full("0") == most
    reserve = (limit - most) // (clients - 1) if clients > 1 else 0
    for other in map(str, range(1, clients)):
        assert taken(shares, other, 2000) == reserve


@pytest.mark.promise("mcp:quota:own")
def test_a_quota_limits_its_client_only() -> None:
    shares = Shares(100, {"a": 3, "b": None})
    assert (taken(shares, "a", 100), shares.full("a")) == (3, 3)
    assert taken(shares, "b", 1000) == 97
    shares.give("a")
    assert shares.full("b") is not None
    assert taken(shares, "a", 100) == 1


def test_without_known_clients_everyone_may_use_everything() -> None:
    shares = Shares(5, {})
    assert (taken(shares, "x", 3), taken(shares, "y", 3)) == (3, 2)
    assert taken(Shares(None, {"a": None, "b": 2}), "a", 10_000) == 10_000


@given(
    st.integers(0, 60),
    st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(1, 5)),
    st.lists(st.tuples(st.booleans(), st.sampled_from(CLIENTS)), max_size=120),
)
def test_the_limit_is_never_exceeded_and_a_reserve_is_never_refused(
    limit: int, quotas: dict[str, int | None], steps: list[tuple[bool, str]]
) -> None:
    shares, used = Shares(limit, quotas), dict[str, int].fromkeys(CLIENTS, 0)
    reserve = min(RESERVED, limit // (2 * len(quotas))) if len(quotas) > 1 else 0
    for takes, client in steps:
        if takes and shares.full(client) is None:
            shares.take(client)
            used[client] += 1
        elif not takes and used[client]:
            shares.give(client)
            used[client] -= 1
        assert sum(used.values()) <= limit
        for name, quota in quotas.items():
            most = reserve if quota is None else min(quota, reserve)
            assert used[name] >= most or shares.full(name) is None
            assert quota is None or used[name] <= quota
