"""Texts that are written to take long, or to be run."""

import gc
import time
from collections.abc import Generator

import pytest

from agentflow.scoring import extract_answer, metric_names, needs_judge, score

PIECES = [
    " ", "\n", "9", "9,", "1 ", "a.", "answer ", "answer:", "<answer>", "</answer>", "<answer><", r"\boxed{", "{", "}", "(", "[", r"\{", "$", "-",
    "so ", "Therefore, ", "therefore\n", "(A) ", "A.", "=", r"\text{", r"\frac{", "one ", "one hundred ", "*_", "'", "['", ".5", "e9", "1/", "%", "final answer\n",
    "__import__('os')", "é", "東", "½", "²", "\u00a0", ", ", " and ", " or ", "|", "^9", r"\pm", "+1", "x=", "<", "&", r"\\", "\0", "‚",
]  # fmt: skip
RULES = [name for name in metric_names() if not needs_judge(name)]


@pytest.fixture
def no_collections() -> Generator[None]:
    """Collect no garbage: it would visit, on the test's time, everything that other tests left in this process."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.promise("scoring:bounded")
@pytest.mark.parametrize("metric", [*RULES, "extract_answer"])
def test_every_rule_takes_bounded_time_for_any_text(metric: str) -> None:
    for piece in PIECES:
        text = piece * (10_000 // len(piece))
        before = time.thread_time()
        if metric == "extract_answer":
            assert len(extract_answer(text)) <= len(text)
        else:
            for reference in ("42", text):
                assert 0.0 <= score(metric, text, reference) <= 1.0
        assert time.thread_time() - before < 2, piece
