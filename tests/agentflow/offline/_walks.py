"""Walks through the bundled corpus with a naive search, as input for the offline engine."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

import agentflow
from agentflow.offline._engine import plan
from agentflow.trace import Action, Node, PlanRequest, ToolCard, canonical
from tests.agentflow.trace._steps import seen_step

_ROOT = Path(agentflow.__file__).parents[1]


class Document(msgspec.Struct, frozen=True):
    """One document of the corpus."""

    id: str
    title: str
    text: str


class BundledSeed(msgspec.Struct, frozen=True):
    """One line of the bundled seeds."""

    content: str
    kwargs: dict[str, object]


@cache
def documents() -> tuple[Document, ...]:
    """Return the bundled corpus."""
    lines = (_ROOT / "mcp_servers/rag/corpus/documents.jsonl").read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=Document) for line in lines)


def seeds() -> tuple[str, ...]:
    """Return the contents of the bundled seeds."""
    lines = (_ROOT / "agentflow/synthesis/_bundled/seeds.jsonl").read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=BundledSeed).content for line in lines)


def card(name: str, properties: dict[str, object], *required: str) -> ToolCard:
    """Return a tool as the planner gets it."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolCard(name, "", schema)


TEXT: dict[str, object] = {"type": "string"}
SEARCH = card("rag_search", {"query": TEXT, "top_k": {"type": "integer", "default": 5}}, "query")
GET = card("rag_get", {"id": TEXT}, "id")
BATCH = card("rag_batch_search", {"queries": {"type": "array", "items": TEXT, "minItems": 1}}, "queries")
BASH = card("bash_run", {"command": TEXT}, "command")
CODE = card("code_run", {"code": TEXT}, "code")


def words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without short ones."""
    return frozenset(re.findall(r"\w+", text.lower())) - {"the", "of", "a", "and"}


@cache
def search(query: str) -> str:
    """Return the five documents that share the most words with a query; matching titles come first."""
    wanted = words(query)
    ranked = sorted(
        (-3 * len(wanted & words(document.title)) - len(wanted & words(document.text)), document.id, document)
        for document in documents()
    )
    hits = [document for score, _, document in ranked[:5] if score < 0]
    shown = (f"[{number}] {hit.title} ({hit.id})\n{hit.text}" for number, hit in enumerate(hits, 1))
    return "\n\n".join(shown) or "no hits"


def act(action: Action) -> str:
    """Return the observation of an action."""
    arguments = action.arguments
    match action.tool:
        case "rag_search":
            return search(arguments["query"])
        case "rag_batch_search":
            return "\n\n".join(f"# {query}\n\n{search(query)}" for query in arguments["queries"])
        case "rag_get":
            found = next(document for document in documents() if document.id == arguments["id"])
            return f"{found.title} ({found.id})\n{found.text}"
        case _:
            program = next(iter(arguments.values()))
            span = re.search(r"(\d+) - (\d+)", program)
            return f"years between: {int(span[1]) - int(span[2])}" if span else f"notes: {len(program)}"


def walks(
    content: str, tools: tuple[ToolCard, ...], depth: int = 3, branching: int = 2
) -> Iterator[tuple[Node, ...]]:
    """Yield every path of a tree that the offline planner grows over the corpus; no action occurs twice in the tree."""
    level: list[tuple[Node, ...]] = [()]
    taken: list[Action] = []
    for _ in range(depth):
        grown: list[tuple[Node, ...]] = []
        for path in level:
            request = PlanRequest(seed=content, tools=tools, path=path, count=branching, taken=tuple(taken))
            for proposal in plan(request).proposals:
                action = Action(proposal.tool, proposal.arguments)
                assert canonical(action) not in {canonical(other) for other in taken}
                taken.append(action)
                grown.append((*path, seen_step(proposal.intent, action, act(action))))
        level = grown
    yield from level
