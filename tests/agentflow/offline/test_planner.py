"""The offline planner."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.offline._engine import plan
from agentflow.trace import Action, Node, Plan, PlanRequest, ToolCard, canonical
from mcp_servers.bash import BashBackend
from mcp_servers.code import CodeBackend
from mcp_servers.files import FilesBackend
from mcp_servers.rag import RagBackend
from tests.agentflow.offline._walks import BASH, BATCH, CODE, GET, SEARCH, card, search, seeds
from tests.agentflow.trace._steps import seen_step

SEED = "Explore the Grey Petrel and her captain."
TOOLS = (SEARCH, BATCH, GET, BASH, CODE)
SEEN = seen_step("look", Action("rag_search", {"query": "Grey Petrel"}), search("Grey Petrel"))


def asked(
    count: int = 2,
    *,
    tools: tuple[ToolCard, ...] = TOOLS,
    path: tuple[Node, ...] = (SEEN,),
    taken: tuple[Action, ...] = (),
    seed: str = SEED,
) -> Plan:
    return plan(PlanRequest(seed=seed, tools=tools, path=path, count=count, taken=taken))


def names(plan: Plan) -> list[str]:
    return [canonical(Action(proposal.tool, proposal.arguments)) for proposal in plan.proposals]


@pytest.mark.promise("offline:plans")
@pytest.mark.parametrize("count", [1, 2, 5, 17])
@pytest.mark.parametrize("path", [(), (SEEN,)])
@pytest.mark.parametrize("tools", [(SEARCH,), (BASH,), (CODE,), TOOLS])
def test_the_requested_number_of_different_actions_is_proposed(
    count: int, path: tuple[Node, ...], tools: tuple[ToolCard, ...]
) -> None:
    found = names(asked(count, path=path, tools=tools))
    assert len(found) == len(set(found)) == count


@pytest.mark.promise("offline:plans")
def test_taken_actions_are_never_proposed_again() -> None:
    taken: tuple[Action, ...] = ()
    for _ in range(6):
        proposals = asked(2, taken=taken).proposals
        assert len(proposals) == 2
        taken += tuple(Action(proposal.tool, proposal.arguments) for proposal in proposals)
    assert len({canonical(action) for action in taken}) == 12
    assert canonical(SEEN.call) not in {canonical(action) for action in taken}


@pytest.mark.promise("offline:links")
def test_mentioned_names_are_searched_once() -> None:
    told = seen_step(
        "look", Action("rag_search", {"query": "Alba"}), "Alba (alba)\nAlba is a port of Fern Island."
    )
    queries = [
        p.arguments["query"] for p in asked(3, tools=(SEARCH,), path=(told,), seed="Explore Alba").proposals
    ]
    assert queries[0] == "Fern Island"
    assert "Alba" not in queries


@pytest.mark.promise("offline:links")
def test_shown_documents_and_urls_are_opened() -> None:
    visit = card("web_visit", {"url": {"type": "string"}}, "url")
    told = seen_step("look", Action("x", {}), "[1] Alba (docs/alba)\nSee https://example.org/alba, it says.")
    proposals = asked(4, tools=(GET, visit), path=(told,), seed="Explore Alba").proposals
    assert {(p.tool, *p.arguments.values()) for p in proposals} == {
        ("rag_get", "docs/alba"),
        ("web_visit", "https://example.org/alba"),
    }


@pytest.mark.promise("offline:spreads")
def test_a_search_comes_first_and_the_other_tools_take_turns() -> None:
    assert {proposal.tool for proposal in asked(2, path=()).proposals} == {"rag_search"}
    seconds: set[str] = set()
    for depth in range(1, 5):
        first, second = asked(2, path=(SEEN,) * depth).proposals
        assert first.tool == "rag_search"
        seconds.add(second.tool)
    assert seconds == {"rag_batch_search", "bash_run", "code_run"}


@pytest.mark.promise("offline:computes")
@pytest.mark.parametrize("tool", [BASH, CODE, card("code_sql", {"query": {"type": "string"}}, "query")])
def test_found_years_are_compared(tool: ToolCard) -> None:
    told = "Alba was founded in 1204. Fern Light was built in 1621."
    path = (seen_step("look", Action("rag_search", {"query": "Alba"}), told),)
    (proposal,) = asked(1, tools=(tool,), path=path).proposals
    assert "1621 - 1204" in next(iter(proposal.arguments.values()))
    assert proposal.intent.endswith("that Alba was founded in 1204 and that Fern Light was built in 1621.")


@pytest.mark.promise("offline:arguments")
@pytest.mark.parametrize("path", [(), (SEEN,)])
def test_the_real_tools_accept_the_proposals(path: tuple[Node, ...]) -> None:
    backends = (RagBackend(), BashBackend(), CodeBackend(), FilesBackend())
    cards = [ToolCard(tool.name, "", tool.input_schema) for backend in backends for tool in backend.tools]
    proposed: set[str] = set()
    for tool in cards:
        for proposal in asked(6, tools=(tool,), path=path).proposals:
            proposed.add(tool.name)
            jsonschema.validate(proposal.arguments, tool.schema)
    assert proposed >= {"rag_search", "rag_batch_search", "rag_stats", "bash_run", "code_run", "code_sql"}
    assert proposed.isdisjoint({"code_install", "files_remove", "files_move", "bash_input"})


ODD: list[dict[str, object]] = [
    {"query": {"type": "string", "maxLength": 6}},
    {"query": {"type": "string", "minLength": 8}},
    {"query": {"type": "string", "pattern": "^G"}},
    {"query": {"type": "string", "enum": ["north", "south"]}},
    {"query": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
    {"query": {"type": ["string", "null"]}},
    {"query": {"$ref": "#/$defs/words"}},
    {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 3}},
    {"query": {"type": "string"}, "limit": {"type": "number", "exclusiveMinimum": 2}},
    {"query": {"type": "string"}, "limit": {"type": "integer", "maximum": 0}},
    {"query": {"type": "string"}, "deep": {"type": "boolean"}, "tags": {"type": "array"}},
    {"query": {"type": "string"}, "mode": {"enum": ["quick", "slow"]}, "kind": {"const": 7}},
    {
        "query": {"type": "string"},
        "range": {"type": "object", "properties": {"from": {"type": "integer"}}, "required": ["from"]},
    },
    {"queries": {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3}},
    {"about": {"type": "string"}},
]


@pytest.mark.promise("offline:arguments")
@pytest.mark.parametrize("properties", ODD)
def test_arguments_are_valid_by_the_schema_of_the_tool(properties: dict[str, object]) -> None:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "$defs": {"words": {"type": "string"}},
    }
    proposals = asked(2, tools=(ToolCard("find_things", "", schema),)).proposals
    assert len(proposals) == 2
    for proposal in proposals:
        jsonschema.validate(proposal.arguments, schema)


@pytest.mark.promise("offline:arguments")
@pytest.mark.parametrize(
    "tool",
    [
        card("rag_get", {"id": {"type": "string"}}, "id"),
        card("pad_write", {"query": {"type": "string"}, "where": {"type": "string"}}, "query", "where"),
        card("box_remove", {"query": {"type": "string"}}, "query"),
        card("pic_crop", {"box": {"type": "array", "minItems": 4}}, "box"),
    ],
)
def test_a_tool_without_a_sensible_argument_is_not_used(tool: ToolCard) -> None:
    assert asked(2, tools=(tool,), path=()).proposals == ()


@pytest.mark.promise("offline:nothing")
@given(
    seed=st.text(max_size=80),
    observations=st.lists(st.text(max_size=400), max_size=3),
    count=st.integers(min_value=1, max_value=4),
)
def test_no_text_makes_planning_fail(seed: str, observations: list[str], count: int) -> None:
    path = tuple(seen_step("look", Action("rag_search", {"query": text}), text) for text in observations)
    first = asked(count, path=path, seed=seed)
    assert len(set(names(first))) == len(first.proposals) == count
    for proposal in first.proposals:
        tool = next(tool for tool in TOOLS if tool.name == proposal.tool)
        jsonschema.validate(proposal.arguments, tool.schema)
    assert asked(count, path=path, seed=seed) == first


@pytest.mark.promise("offline:nothing")
@pytest.mark.parametrize(
    "seed", ["", "   ", "探索群岛的历史和灯塔", "???", "A" * 10_000, "é\u0301 \x00 \ud7ff"]
)
def test_odd_seeds_still_give_actions(seed: str) -> None:
    assert len(asked(2, path=(), seed=seed).proposals) == 2


@pytest.mark.promise("offline:seeds")
def test_every_bundled_seed_starts_with_a_different_search() -> None:
    firsts = [asked(1, path=(), seed=seed).proposals[0].arguments["query"] for seed in seeds()]
    assert len(set(firsts)) == len(firsts) == 12
