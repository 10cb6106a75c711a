"""Steps with labels, `Context:`, `Sub-Goal:` and `Tool Name:`, as the released planners of AgentFlow write them.

Each step has one prompt with everything in it: these planners were trained without a conversation.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agentflow.models import Message
from agentflow.team._messages import analysis_text
from agentflow.team._rendering import (
    Images,
    call_line,
    describe_tools,
    episode_images,
    escape_marks,
    image_label,
    image_parts,
    observation_block,
    prompt,
    user,
)
from agentflow.trace import Memory, NextStep, NextStepRequest

DOCUMENTED_TOOLS: Final[Mapping[str, str]] = {
    "Base_Generator_Tool": "base_generator",
    "Generalist_Solution_Generator_Tool": "base_generator",
    "Google_Search_Tool": "google_search",
    "Ground_Google_Search_Tool": "google_search",
    "Python_Code_Generator_Tool": "python_coder",
    "Python_Coder_Tool": "python_coder",
    "Web_RAG_Search_Tool": "web_read",
    "Web_Search_Tool": "web_read",
    "Wikipedia_RAG_Search_Tool": "web_wikipedia",
    "Wikipedia_Search_Tool": "web_wikipedia",
}
"""Documented tool name -> our name."""
_PROMPT: Final = "planner_next_step_labelled"
_LABEL: Final = re.compile(
    r"^[ \t>#*_`-]*(?:\d+[.)][ \t]*)?[*_`]*(justification|context|sub[\W_]?goal|tool[\W_]?name)[*_` \t]*"
    r"(?::[*_` \t]*|$)",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE: Final = re.compile(r"^[ \t]*```\w*[ \t]*$", re.MULTILINE)
_NAMES: Final = {"context": "Context", "subgoal": "Sub-Goal", "toolname": "Tool Name"}


def labelled_step_messages(request: NextStepRequest, images: Images) -> tuple[Message, ...]:
    """Ask for the next step of an episode in one message."""
    blobs = episode_images(request.images, request.memory.turns)
    places = list(dict.fromkeys(blob.hash for blob in blobs if blob.hash in images))
    visible = [blob.hash for blob in request.images if blob.hash in images]
    text = prompt(
        _PROMPT,
        "ask",
        instructions=request.instructions,
        question=escape_marks(request.question) + image_label("the query", visible, places),
        analysis=analysis_text(request.analysis),
        names=", ".join(tool.name for tool in request.tools),
        tools=describe_tools(request.tools),
        steps=_steps(request.memory, images, places),
        left=request.turns_left,
    )
    return (user(text, image_parts(blobs, images)),)


def _steps(memory: Memory, images: Images, places: Sequence[str]) -> str:
    summary = prompt(_PROMPT, "summary", count=memory.summarised or "", summary=escape_marks(memory.summary))
    steps = (
        prompt(
            _PROMPT,
            "step",
            number=turn.number,
            tool=escape_marks(turn.step.tool_name) or "(none)",
            goal=escape_marks(turn.step.sub_goal) or "(none)",
            call="nothing" if turn.action is None else escape_marks(call_line(turn.action)),
            observation=observation_block(turn.number, turn.result, turn.images, images, places),
        )
        for turn in memory.turns
    )
    return "\n\n".join(filter(None, (summary, *steps)))


def read_labelled_step(text: str, names: Iterable[str]) -> NextStep:
    """Return the last step in a text. Markdown, code fences, and lines around it are ignored. See docs/team.md.

    :param names: names of the tools; one that is spelled otherwise is recognised.
    :raises ValueError: if a part is missing.
    """
    parts = _parts(text)
    wanted = ("toolname", "subgoal", "context")
    step: dict[str, str] = {}
    end = len(parts)
    for label in wanted:
        index = next((index for index in reversed(range(end)) if parts[index][0] == label), None)
        if index is not None:
            step[label], end = parts[index][1], index
    for label in ("toolname", "subgoal"):
        if not step.get(label):
            raise ValueError(f"the answer has no '{_NAMES[label]}:'")
    reasons = [content for label, content in parts[:end] if label == "justification"]
    return NextStep(
        justification=reasons[-1] if reasons else "",
        context=step.get("context", ""),
        sub_goal=step["subgoal"],
        tool_name=_tool_name(step["toolname"], names),
    )


def _parts(text: str) -> list[tuple[str, str]]:
    """Return the labels of a text, plain, each with what follows it."""
    text = _FENCE.sub("", text)
    labels = list(_LABEL.finditer(text))
    ends = [*(label.start() for label in labels[1:]), len(text)]
    return [
        (_plain(label[1]), text[label.end() : end].strip().removesuffix("**"))
        for label, end in zip(labels, ends, strict=False)
    ]


def _tool_name(text: str, names: Iterable[str]) -> str:
    """Return the tool that the first line of a text names, by our name or the documented one; else the line."""
    line = text.partition("\n")[0].strip(" \t*_`'\".")
    ours = {_plain(name): name for name in names}
    documented = {_plain(name): our_name for name, our_name in DOCUMENTED_TOOLS.items()}
    return ours.get(_plain(documented.get(_plain(line), line)), line)


def _plain(name: str) -> str:
    """Return a name in lower case without separators."""
    return re.sub(r"[\W_]+", "", name.lower())
