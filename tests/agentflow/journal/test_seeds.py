"""Adding seeds."""

import re

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError
from agentflow.journal import Journal, NewSeed, Run, open_journal
from agentflow.trace import Seed

ABC = [NewSeed("a"), NewSeed("b", {"path": "x", "limits": [1, 2]}), NewSeed("c", id="my own")]


@pytest.mark.promise("journal:seeds:order")
async def test_seeds_get_index_and_id_in_order(run: Run) -> None:
    assert await run.add_seeds(ABC) == [
        Seed(index=0, id="seed_001", content="a"),
        Seed(index=1, id="seed_002", content="b", kwargs={"path": "x", "limits": [1, 2]}),
        Seed(index=2, id="my own", content="c"),
    ]


@pytest.mark.promise("journal:seeds:again")
async def test_the_same_list_adds_nothing_and_a_longer_one_its_new_seeds(run: Run) -> None:
    first = await run.add_seeds(ABC)
    assert await run.add_seeds(ABC) == first
    other = await run.add_seeds([NewSeed("z")], origin="later")
    assert [seed.id for seed in other] == ["seed_004"]
    longer = await run.add_seeds([*ABC, NewSeed("d")])
    assert longer == [*first, Seed(index=4, id="seed_005", content="d")]
    assert (await run.counts()).waiting == 5


@pytest.mark.promise("journal:seeds:again")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([NewSeed("a"), NewSeed("other"), ABC[2]], "number 2 (seed_002) was another one before"),
        ([NewSeed("a"), NewSeed("b"), ABC[2]], "number 2 (seed_002) was another one before"),
        ([*ABC[:2], NewSeed("c")], "number 3 (my own) was another one before"),
        (ABC[:2], "3 were there, now 2 are"),
    ],
)
async def test_a_list_with_another_beginning_is_refused_and_changes_nothing(
    run: Run, changed: list[NewSeed], message: str
) -> None:
    first = await run.add_seeds(ABC)
    with pytest.raises(
        ConfigurationError, match=re.escape(f"seeds (start): {message}; go back to")
    ) as refused:
        await run.add_seeds(changed)
    assert "\n" not in str(refused.value)
    assert await run.add_seeds(ABC) == first


@pytest.mark.promise("journal:seeds:again")
async def test_adding_a_seed_returns_it_as_others_read_it(run: Run) -> None:
    odd = [NewSeed("a", {"endless": float("inf"), "pair": (1, 2)})]
    added = await run.add_seeds(odd)
    assert added[0].kwargs == {"endless": None, "pair": [1, 2]}
    assert await run.add_seeds(odd) == added == await run.claim("me", 1)


@pytest.mark.promise("journal:seeds:ids")
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([NewSeed("a", id="same"), NewSeed("b", id="same")], "two have the id 'same'; give each its own"),
        ([NewSeed("a", id="seed_002"), NewSeed("b")], "two have the id 'seed_002'"),
        ([NewSeed("a", id="")], "the id '' can't be used"),
        ([NewSeed("a", id="x\0")], "the id 'x\\x00' can't be used"),
        ([NewSeed("a", {"lone": "\ud800"})], "seed_001 can't be written as JSON"),
        ([NewSeed("a", {"thing": object()})], "seed_001 can't be written as JSON"),
    ],
)
async def test_an_unstorable_seed_gives_one_line_and_none_is_added(
    run: Run, bad: list[NewSeed], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"seeds: {message}")) as refused:
        await run.add_seeds(bad)
    assert "\n" not in str(refused.value)
    assert (await run.counts()).waiting == 0


@pytest.mark.promise("journal:seeds:together")
async def test_seeds_added_by_many_processes_get_distinct_indices(url: str) -> None:
    async def add(origin: str) -> None:
        async with open_journal(url) as journal:
            run = await journal.open_run("run", {})
            await run.add_seeds([NewSeed(f"{origin} {number}") for number in range(20)], origin)
            await run.add_seeds([NewSeed(f"all {number}") for number in range(20)])

    async with anyio.create_task_group() as tasks:
        for origin in "abcd":
            tasks.start_soon(add, origin)
    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        seeds = await run.claim("me", 1000)
    assert [seed.index for seed in seeds] == list(range(100))
    assert len({seed.content for seed in seeds}) == len({seed.id for seed in seeds}) == 100


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
new_seeds = st.lists(
    st.builds(NewSeed, content=st.text(), kwargs=st.dictionaries(st.text(), json, max_size=3)), max_size=4
)


@pytest.mark.promise("journal:seeds:again")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lists=st.lists(new_seeds, min_size=1, max_size=3))
async def test_seeds_of_any_content_are_read_back_unchanged(
    journal: Journal, lists: list[list[NewSeed]]
) -> None:
    run = await journal.open_run(f"run {id(lists)} {hash(repr(lists))}", {})
    for number, new in enumerate(lists):
        added = await run.add_seeds(new, str(number))
        assert [(seed.content, seed.kwargs) for seed in added] == [(one.content, one.kwargs) for one in new]
        assert await run.add_seeds(new, str(number)) == added


@pytest.mark.promise("journal:seeds:further")
async def test_of_another_list_the_seeds_that_are_missing_are_added_if_asked_for(run: Run) -> None:
    first = await run.add_seeds(ABC[:2])
    for _ in range(2):
        await run.add_seeds(
            [NewSeed("x"), NewSeed("b", {"limits": [1, 2], "path": "x"}), NewSeed("b")], further=True
        )
        assert (await run.counts()).waiting == 4
    assert await run.add_seeds(ABC[:1], further=True) == []
    assert [seed.id for seed in await run.add_seeds([NewSeed("y")], further=True)] == ["seed_005"]
    with pytest.raises(ConfigurationError, match="two have the id 'seed_001'"):
        await run.add_seeds([NewSeed("z", id="seed_001")], further=True)
    assert await run.add_seeds(ABC[:2]) == first
    assert (await run.add_seeds([*ABC[:2], NewSeed("w")], further=True))[-1].content == "w"
