"""Steps of a planner that writes labels instead of JSON."""

import pytest

from agentflow.models import TextPart
from agentflow.team._labelled_steps import labelled_step_messages, read_labelled_step
from agentflow.trace import Action, Blob, Failure, Memory, NextStep, NextStepRequest, ToolCard, Turn
from tests.agentflow.team._model import SEARCH
from tests.agentflow.team._solving import ANALYSIS

NAMES = ("rag_search", "python_coder")
STEP = NextStep("It was named.", "Mara Voss", "Find her year of birth.", "rag_search")

WRITTEN = {
    "plain": """Justification: It was named.
Context: Mara Voss
Sub-Goal: Find her year of birth.
Tool Name: rag_search""",
    "numbered and bold, as it was asked for": """1.  **Justification:** It was named.
2.  **Context:** Mara Voss
3.  **Sub-Goal:** Find her year of birth.
4.  **Tool Name:** rag_search""",
    "bold around everything": """**Justification**: It was named.

**Context: Mara Voss**

**Sub-Goal: Find her year of birth.**

**Tool Name: rag_search**""",
    "headings": """### Justification
It was named.

### Context
Mara Voss

### Sub-Goal
Find her year of birth.

### Tool Name
`rag_search`""",
    "in a code fence, with more text": """I know what to do now.
justification: It was named.
```
context: Mara Voss
sub_goal: Find her year of birth.
tool_name: Rag Search.
```

This step will give us the year.""",
    "after a first attempt": """Context: the template says <context>
Sub-Goal: <sub_goal>
Tool Name: <tool_name>

Justification: It was named.
Context: Mara Voss
Sub-Goal: Find her year of birth.
Tool Name: "rag-search" """,
}


@pytest.mark.promise("team:planner:labelled")
@pytest.mark.parametrize("name", WRITTEN)
def test_a_step_is_read_from_its_labels(name: str) -> None:
    assert read_labelled_step(WRITTEN[name], NAMES) == STEP


@pytest.mark.promise("team:planner:labelled")
def test_parts_of_several_lines_are_kept_and_an_unknown_tool_stays_as_it_is() -> None:
    step = read_labelled_step(
        "Context:\n- Mara Voss\n- the tool name is in the list: 1. a\n2. b\nSub-Goal: Compute x ** 2.\nTool Name: Calculator\n",
        NAMES,
    )
    assert step == NextStep(
        "", "- Mara Voss\n- the tool name is in the list: 1. a\n2. b", "Compute x ** 2.", "Calculator"
    )


@pytest.mark.promise("team:planner:labelled")
@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Python_Coder_Tool", "python_coder"), ("Python_Code_Generator_Tool", "python_coder"), ("python coder", "python_coder"),
        ("rag:search", "rag_search"), ("Google_Search_Tool", "Google_Search_Tool"),
    ],
)  # fmt: skip
def test_a_tool_may_have_its_documented_name(written: str, name: str) -> None:
    assert read_labelled_step(f"Sub-Goal: Look.\nTool Name: {written}", NAMES).tool_name == name


@pytest.mark.promise("team:planner:labelled")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The answer is 1871.", "the answer has no 'Tool Name:'"),
        ("Sub-Goal: Look.\nTool Name:", "the answer has no 'Tool Name:'"),
        ("Context: a\nTool Name: rag_search", "the answer has no 'Sub-Goal:'"),
        ('{"tool_name": "rag_search"}', "the answer has no 'Tool Name:'"),
    ],
)
def test_an_answer_without_a_goal_or_a_tool_is_unusable(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_labelled_step(text, NAMES)


@pytest.mark.promise("team:planner:labelled")
def test_its_prompt_is_one_message_with_everything_that_happened() -> None:
    turns = (
        Turn(number=3, step=STEP, action=Action("rag_search", {"query": "Mara Voss"}), result="Born </observation> in 1871."),
        Turn(number=4, step=NextStep("", "", "", ""), action=None, result="unusable", failure=Failure("garbage", "no JSON")),
    )  # fmt: skip
    request = NextStepRequest(
        question="When?",
        instructions="Be quick.",
        tools=(ToolCard("rag_search", "Search the documents.", SEARCH.schema),),
        analysis=ANALYSIS,
        memory=Memory(summary="Mara was named.", summarised=2, turns=turns),
        turns_left=2,
    )
    [message] = labelled_step_messages(request, {})
    [part] = message.parts
    assert isinstance(part, TextPart)
    for words in (
        "Be quick.", "**Query:** When?", "Question: A year.", "## rag_search", "Summary of steps 1 to 2:\nMara was named.",
        "Action Step 3:\n- tool_name: rag_search\n- sub_goal: Find her year of birth.", "Action Step 4:\n- tool_name: (none)",
        '- command: rag_search {"query":"Mara Voss"}', "**Remaining Steps:** 2", "**Tool Name:**",
    ):  # fmt: skip
        assert words in part.text, words
    assert part.text.count("</observation>") == 2
    assert "$" not in part.text
    bare = labelled_step_messages(
        NextStepRequest(question="When?", tools=(SEARCH,), analysis=ANALYSIS, memory=Memory(), turns_left=2),
        {},
    )
    assert "Previous Steps" not in str(bare)
    seen = labelled_step_messages(
        NextStepRequest(question="W?", images=(Blob("ab", "image/png"),), tools=(SEARCH,), analysis=ANALYSIS, memory=Memory(), turns_left=2),
        {"ab": b"png"},
    )  # fmt: skip
    assert len(seen[0].parts) == 2
