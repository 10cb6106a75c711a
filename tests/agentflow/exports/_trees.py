"""Runs and trees for tests of exports."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from hypothesis import strategies as st
from openai import AsyncOpenAI

from agentflow.cli import main
from agentflow.gateway import ExactAnswerer
from agentflow.inspection import AnswerRecord, RunKind, RunRecords, SeedRecord
from agentflow.models import ToolSpec
from agentflow.trace import Action, ActionOutcome, Blob, Node, Observation, Seed, Task, Text, Tree, Verdict
from agentflow.tuner import PolicyEndpoint
from tests.agentflow.gateway._engine import RandomEngine
from tests.agentflow.tuner._tuning import some_tasks, tuned

SEEDS = ("Explore the lighthouses of Lucan Thorne and their keepers.", "Explore the Grey Petrel.")
QUESTIONS = (
    {"id": "a", "question": "When was Needle Light built?", "answer": "1834"},
    {"id": "b", "question": "Who was the designer of Needle Light?", "answer": "Somebody else"},
)


def synthesise(folder: Path, *settings: str) -> Path:
    """Run a small synthesis, by default by the offline engine; return its output directory."""
    seeds = folder / "seeds.jsonl"
    seeds.write_text("".join(json.dumps({"content": seed}) + "\n" for seed in SEEDS), encoding="utf-8")
    output = folder / "synthesis"
    assert main(["synth", f"seeds_file={seeds}", f"output_dir={output}", "max_depth=3", *settings]) == 0
    return output


def roll_out(folder: Path) -> Path:
    """Run a small rollout by the offline engine, with a right and a wrong task; return its output directory."""
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in QUESTIONS), encoding="utf-8")
    output = folder / "rollout"
    assert main(["rollout", "--data", str(tasks), f"output_dir={output}", "max_turns=3", "samples=2"]) == 0
    return output


def tune_agent(folder: Path) -> Path:
    """Tune an agent for two steps, with a validation, through a gateway whose engine gives random answers; return its output directory."""
    output, tasks, model = folder / "tuning", some_tasks(3), ExactAnswerer(RandomEngine().engine)
    anyio.run(partial(tuned, output, _converse, tasks[:2], steps=2, held_out=tasks[2:], model=model))
    (output / "settings.yaml").write_text("solve: agent.py:converse\n", encoding="utf-8")
    return output


async def _converse(task: Task, policy: PolicyEndpoint) -> float:
    """Play an episode of two turns with a tool; half of the episodes of a task are right."""
    function = {"name": "look", "description": "Look it up.", "parameters": {"type": "object"}}
    tools: Any = [{"type": "function", "function": function}]
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": task.question},
    ]
    async with AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(model=policy.model, messages=messages, tools=tools)
            message = answer.choices[0].message
            messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": "1834"}
                for call in message.tool_calls or ()
            ]
            messages += results or [{"role": "user", "content": "Are you sure?"}]
    return float(policy.episode.endswith("0"))


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def node(
    name: str,
    parent: str | None,
    depth: int,
    *,
    new: bool = True,
    tool: str = "rag_search",
    images: tuple[Blob, ...] = (),
    position: int = 0,
) -> Node:
    """Return a node; the root has no action."""
    action = None if parent is None else Action(tool, {"query": f"about {name}", tool: depth})
    return Node(
        id=name,
        parent=parent,
        depth=depth,
        position=position,
        intent=f"Look for {name}.",
        action=action,
        outcome=ActionOutcome(Observation((Text(f"Seen at {name}."), *images))),
        verdict=Verdict.NEW if new else Verdict.ERROR,
    )


def tree_of(nodes: tuple[Node, ...], text: str = "Explore.", *, id: str = "t", group: str = "s") -> Tree:
    """Return a tree of nodes."""
    return Tree(id=id, seed=Seed(index=0, id=group, content=text), nodes=nodes)


def answer(tree: tuple[Node, ...], name: str, last: str, *, right: bool = True) -> AnswerRecord:
    """Return an answer on the path to a node."""
    known = {one.id: one for one in tree}
    path = [last]
    while (parent := known[path[-1]].parent) is not None:
        path.append(parent)
    return AnswerRecord(
        id=name,
        question=f"Question {name}?",
        answer=f"Answer {name}",
        references=(f"Answer {name}",),
        nodes=tuple(reversed(path)),
        right=right,
    )


@st.composite
def trees(draw: st.DrawFn) -> SeedRecord:
    """Generate a tree with tools of different schemas, failed calls, and an answer on some of its leaves."""
    parents = draw(st.lists(st.integers(0, 11), max_size=12))
    nodes = [node("n0", None, 0)]
    for number, parent in enumerate(parents, 1):
        above = nodes[min(parent, number - 1)]
        new, tool = draw(st.booleans()), draw(st.sampled_from(("rag_search", "bash_run")))
        nodes.append(node(f"n{number}", above.id, above.depth + 1, new=new, tool=tool))
    whole = tuple(nodes)
    ends = draw(st.sets(st.sampled_from([one.id for one in nodes]), max_size=4))
    answers = tuple(
        answer(whole, f"a{place}", end, right=draw(st.booleans())) for place, end in enumerate(sorted(ends))
    )
    return SeedRecord(tree=tree_of(whole, "Explore it."), is_episode=False, answers=answers)


def program_of(card: str) -> str:
    """Return the program in the text of a card; empty: it has none."""
    found = re.search(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


TOOLS = (
    ToolSpec(
        "rag_search", "Find documents.", {"type": "object", "properties": {"query": {"type": "string"}}}
    ),
    ToolSpec(
        "bash_run",
        "Run a command.",
        {
            "type": "object",
            "properties": {"options": {"type": "object", "properties": {"depth": {"type": "integer"}}}},
        },
    ),
)
"""Tools with schemas of different types."""

IMAGE = Blob("0" * 64, "image/png")


class MixedSource(RunRecords):
    """Run with all that formats treat differently: masked calls, images, and tools with different schemas."""

    kind = RunKind.SYNTHESIS

    @property
    def key(self) -> str:
        """Return a constant."""
        return "mixed"

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return two tools."""
        return TOOLS

    def image(self, image: Blob) -> bytes | None:
        """Return the bytes of the image."""
        return b"a picture" if image == IMAGE else None

    def records(self) -> Iterator[SeedRecord]:
        """Yield two trees with two answers each; the path of one has a masked call, that of another an image."""
        for name in ("s", "t"):
            nodes = (
                node(f"{name}0", None, 0),
                node(f"{name}1", f"{name}0", 1, new=False, tool="bash_run"),
                node(f"{name}2", f"{name}1", 2),
                node(f"{name}3", f"{name}0", 1, tool="bash_run", images=(IMAGE,)),
            )
            answers = (answer(nodes, f"{name}a", f"{name}2"), answer(nodes, f"{name}b", f"{name}3"))
            yield SeedRecord(
                tree=tree_of(nodes, "Explore it.", id=name, group=name),
                is_episode=False,
                answers=answers,
                facts={"kwargs": {"path": f"{name}.csv", "limit": {"rows": 3}}} if name == "s" else {},
            )


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a folder with their bytes, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()
