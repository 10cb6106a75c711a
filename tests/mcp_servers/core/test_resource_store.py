"""ResourceStore: bounded, the oldest resources are dropped first."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.core._sessions import MAX_RESOURCES, Resource, ResourceStore


def resource(number: int, size: int) -> Resource:
    return Resource(f"agentflow://s/{number}", "x", "text/plain", b"x" * size)


@given(st.lists(st.integers(0, 30)))
def test_a_store_never_exceeds_its_capacity_and_keeps_the_newest(sizes: list[int]) -> None:
    store = ResourceStore(20)
    for number, size in enumerate(sizes):
        store.put(resource(number, size))
        newest = store.get(f"agentflow://s/{number}")
        assert newest is not None
        assert len(newest.data) == min(size, 20)
    assert sum(len(kept.data) for kept in store) <= 20


def test_a_copy_shares_existing_resources_but_not_later_ones() -> None:
    store = ResourceStore(20)
    store.put(resource(1, 5))
    copy = store.copy()
    store.put(resource(2, 5))
    assert [kept.uri for kept in copy] == ["agentflow://s/1"]


def test_a_store_holds_a_bounded_number_of_resources_of_any_size() -> None:
    store = ResourceStore(20)
    for number in range(MAX_RESOURCES + 10):
        store.put(resource(number, 0))
    assert len(list(store)) == MAX_RESOURCES
    assert store.get("agentflow://s/9") is None
