from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox, argument_of
from agentflow.sandbox._tool_host import (
    ALIAS_ARGUMENTS,
    ARGUMENT_ALIASES,
    BACKEND_ALIASES,
    TOOL_ALIASES,
    Names,
    canonical_backend,
    documented_arguments,
)
from mcp_servers import BACKENDS, Tool, load_backend
from mcp_servers.core import Hints
from tests.behaviour._tree import ROOT


def a_tool(route: str) -> Tool:
    """A tool of that name."""

    async def invoke(**_: object) -> object:
        raise NotImplementedError

    def dump(_: object) -> dict[str, object]:
        raise NotImplementedError

    backend, verb = route.split(":")
    return Tool(
        backend=backend,
        verb=verb,
        title=route,
        description="A tool.",
        input_schema={"type": "object", "properties": {}},
        output_schema=None,
        hints=Hints(),
        bind=dict,
        invoke=invoke,
        dump=dump,
    )


ROUTES = [
    "bash:run",
    "bash:jobs",
    "code:run",
    "files:read",
    "rag:search",
    "sql:schema",
    "web:search",
    "web:visit",
]
NAMES = Names(map(a_tool, ROUTES))


@pytest.mark.promise("sandbox:names:spellings")
@pytest.mark.parametrize("name", ["bash:run", "bash_run", "bash-run", "bash.run", " bash:run "])
def test_a_name_may_be_written_with_any_separator(name: str) -> None:
    assert NAMES.find(name).route == "bash:run"


@pytest.mark.promise("sandbox:names:aliases")
@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("python_execute", "code:run"),
        ("retrieval", "rag:search"),
        ("web_search", "web:search"),
        ("google_search", "web:search"),
        ("browse_url", "web:visit"),
        ("read_file", "files:read"),
        ("get_table_schema", "sql:schema"),
        ("text2sql:get_schema", "sql:schema"),
        ("text2sql:schema", "sql:schema"),
        ("knowledge_base:search", "rag:search"),
        ("filesystem-read", "files:read"),
    ],
)
def test_documented_names_are_aliases(name: str, route: str) -> None:
    assert NAMES.find(name).route == route


@pytest.mark.promise("sandbox:names:bare-verb")
def test_a_bare_verb_is_enough_if_it_is_unique() -> None:
    assert NAMES.find("jobs").route == "bash:jobs"
    with pytest.raises(ToolFailure, match="'run' may mean bash:run or code:run"):
        NAMES.find("run")


@pytest.mark.promise("sandbox:names:nearest")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bash:rum", "Did you mean 'bash:run'?"),
        ("bsh:run", "Did you mean 'bash'?"),
        ("files_raed", "Did you mean 'files:read'?"),
        ("ds_run_python", "'ds_run_python' means data:run"),
        ("doc:read", "no backend 'document' here"),
        ("vm:*", "no backend 'vm' here"),
    ],
)
def test_an_unknown_name_gives_one_line_with_the_nearest_one(name: str, says: str) -> None:
    with pytest.raises(ToolFailure) as raised:
        NAMES.select(name)
    assert raised.value.kind is ErrorKind.TOOL_NOT_FOUND
    assert says in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.promise("sandbox:names:patterns")
@pytest.mark.parametrize(
    ("patterns", "routes"),
    [
        ("*", ROUTES),
        ("bash:*", ["bash:run", "bash:jobs"]),
        ("bash-*", ["bash:run", "bash:jobs"]),
        ("bash", ["bash:run", "bash:jobs"]),
        ("knowledge_base", ["rag:search"]),
        ("text2sql:*", ["sql:schema"]),
        ("*:search", ["rag:search", "web:search"]),
        (["web_*", "python_execute", "code:run"], ["code:run", "web:search", "web:visit"]),
        ([], []),
    ],
)
def test_patterns_select_each_tool_once_in_order(patterns: str | list[str], routes: list[str]) -> None:
    assert [tool.route for tool in NAMES.select(patterns)] == routes


@pytest.mark.promise("sandbox:names:spellings")
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
            st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
        ).map(":".join),
        max_size=8,
        unique_by=lambda route: route.replace(":", "_"),
    )
)
def test_every_tool_is_found_by_its_own_name_among_any_others(routes: list[str]) -> None:
    names = Names(map(a_tool, routes))
    for route in routes:
        assert names.find(route).route == route
        assert names.find(route.replace(":", "_")).route == route
        assert route in [tool.route for tool in names.select(route)]


@pytest.mark.promise("sandbox:names:aliases")
def test_aliases_resolve_to_real_names() -> None:
    for route in TOOL_ALIASES.values():
        backend, _, verb = route.partition(":")
        assert canonical_backend(backend) == backend
        assert verb
    assert not BACKEND_ALIASES.keys() & set(BACKEND_ALIASES.values())


@pytest.mark.promise("sandbox:names:aliases")
def test_the_documentation_lists_the_aliases() -> None:
    page = (ROOT / "docs/sandbox.md").read_text(encoding="utf-8")
    named = {*TOOL_ALIASES, *BACKEND_ALIASES}
    assert [alias for alias in sorted(named) if f"`{alias}`" not in page] == []


@pytest.mark.promise("sandbox:names:arguments")
def test_an_argument_s_own_name_precedes_its_aliases() -> None:
    assert argument_of("db_id", ["database", "query"]) == "database"
    assert argument_of("max_rows", ["max_rows", "rows"]) == "max_rows"
    assert argument_of("query", ["query"]) == "query"
    assert argument_of("db_id", ["query"]) is None
    assert argument_of("company", ["query"]) is None


@pytest.mark.promise("sandbox:names:arguments")
async def test_every_alias_of_an_argument_belongs_to_a_tool() -> None:
    async with Sandbox(backends=["sql", "document", "data"]) as sandbox:
        schemas = [tool.input_schema["properties"] for tool in await sandbox.tools()]
    takes = {name for schema in schemas for name in cast("dict[str, object]", schema)}
    assert set(ARGUMENT_ALIASES.values()) <= takes
    assert not set(ARGUMENT_ALIASES) & (takes - {"max_rows"})


DOCUMENTED_CALLS: dict[str, dict[str, object]] = {
    "browse_url": {"url": "https://a.example/", "goal": "ports"},
    "web_search": {"query": ["a", "b"]},
    "google_search": {"query": "a", "add_citations": True},
    "wikipedia_search": {"query": "a"},
    "web:visit": {"urls": ["https://a.example/"], "goal": "ports"},
    "web:image_search": {"query": "a"},
    "web:reverse_image_search": {"image_url": "https://a.example/a.png"},
    "python_execute": {"code": "1"},
    "retrieval": {"query": "a", "top_k": 3},
    "rag:search": {"query": "a", "top_k": 3},
    "rag:batch_search": {"queries": ["a"], "top_k": 3},
    "rag:stats": {},
    "execute_sql": {"query": "SELECT 1", "db_id": "main"},
    "get_table_schema": {"db_id": "main", "table_names": ["a"]},
    "text2sql:get_schema": {"db_id": "main", "table_names": ["a"]},
    "text2sql:execute": {"db_id": "main", "query": "SELECT 1"},
    "text2sql:list_databases": {},
    "read_document": {"file_path": "a.pdf", "goal": "ports"},
    "doc:read": {"section_ids": ["1"], "goal": "ports", "max_image_num": 3, "max_text_token": 500},
    "search_document": {"key_words": "a", "max_search_results": 3},
    "doc:search": {"key_words": ["a"], "max_search_results": 3},
    "read_file": {"file_path": "a.txt"},
    "ds_inspect_data": {"seed_path": "data"},
    "ds_read_csv": {"csv_file": "a.csv", "max_rows": 5},
    "ds_run_python": {"code": "1", "return_vars": ["a"]},
    "bash:run": {"command": "ls"},
    "vm:screenshot": {},
    "vm:click": {"x": 100, "y": 200},
    "vm:double_click": {"x": 1, "y": 2},
    "vm:right_click": {"x": 1, "y": 2},
    "vm:drag": {"start_x": 1, "start_y": 2, "end_x": 3, "end_y": 4},
    "vm:scroll": {"x": 1, "y": 2, "clicks": -3},
    "vm:type": {"text": "a", "interval": 0.0},
    "vm:hotkey": {"keys": ["ctrl", "a"]},
    "vm:wait": {"seconds": 1.0},
}
"""Calls as other systems document them."""


@pytest.fixture(scope="module")
def every_name() -> Names:
    return Names(tool for name in BACKENDS for tool in load_backend(name).tools)


@pytest.mark.promise("sandbox:names:documented_calls")
@pytest.mark.parametrize("name", DOCUMENTED_CALLS)
def test_a_documented_call_has_acceptable_arguments(name: str, every_name: Names) -> None:
    tool = every_name.find(name)
    known = cast("dict[str, object]", tool.input_schema.get("properties", {}))
    tool.bind(documented_arguments(name, known, DOCUMENTED_CALLS[name]))


@pytest.mark.promise("sandbox:names:documented_calls")
def test_an_argument_given_twice_or_unknown_is_left_to_the_tool() -> None:
    both = {"url": "a", "urls": "b"}
    assert documented_arguments("browse_url", ["urls", "goal"], both) == both
    assert documented_arguments("browse_url", ["urls"], {"uri": "a"}) == {"uri": "a"}
    assert documented_arguments("web:visit", ["urls"], {"url": "a"}) == {"url": "a"}
    assert documented_arguments("google-search", ["query", "engine"], {"query": "a"}) == {
        "query": "a",
        "engine": "google",
    }
    assert documented_arguments("google_search", ["query"], {"query": "a"}) == {"query": "a"}


@pytest.mark.promise("sandbox:names:documented_calls")
async def test_every_argument_of_an_alias_belongs_to_its_tool(every_name: Names) -> None:
    for alias, arguments in ALIAS_ARGUMENTS.items():
        known = cast("dict[str, object]", every_name.find(alias).input_schema["properties"])
        assert set(arguments.values()) <= set(known), alias
        assert not set(arguments) & set(known), alias


@pytest.mark.promise("sandbox:names:documented_calls")
def test_a_tool_chosen_by_a_name_that_implies_arguments_keeps_that_name(every_name: Names) -> None:
    usual, google = every_name.select(["google_search", "web_search"])
    assert (usual.name, google.name) == ("web_search", "google_search")
    assert "engine" in cast("dict[str, object]", usual.input_schema["properties"])
    assert set(cast("dict[str, object]", google.input_schema["properties"])) == {"query", "count"}
    assert every_name.find(google.name).route == google.route == "web:search"
