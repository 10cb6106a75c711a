"""Reasoning from a question to its answer: the steps of its program, with the spans that state their facts."""

import re
from collections.abc import Sequence

from agentflow.facts import (
    Fact,
    FactSpan,
    FactStore,
    Program,
    closed_sets,
    describe_program,
    evaluate,
    show_value,
)
from agentflow.runs import image_file
from agentflow.synthesis._seed_result import CitedSpan, ReasoningStep
from agentflow.trajectory import Node

_REFERENCE = re.compile(r"\((\d+)\)")
_MAX_SHOWN = 6
"""Maximum number of values of a step that are listed."""


def reasoning_of(
    program: Program, store: FactStore, nodes: Sequence[Node], support: Sequence[str], least: int
) -> tuple[ReasoningStep, ...]:
    """Return the steps of a program with their results; a closing step is added if there are fewer than `least`.

    :param support: nodes to cite where several state a fact.
    """
    names = {one.id: one.description for one in store.sets.values()}
    lines = describe_program(program, names)
    cited = _Citations(nodes, support)
    shown: list[str] = []
    used: set[str] = set()
    steps: list[ReasoningStep] = []
    for number, line in enumerate(lines, start=1):
        part = program[:number]
        answers = evaluate(part, store).answers
        shown.append(_values([show_value(answer.value) for answer in answers]))
        words = _REFERENCE.sub(lambda match: shown[int(match[1]) - 1], line.partition(") ")[2])
        stated = [id for answer in answers for id in answer.facts]
        # A step that only computes rests on the facts of earlier ones.
        facts = [id for id in stated if id not in used] or stated
        used.update(facts)
        spans = [cited.fact(store.by_id[id]) for id in dict.fromkeys(facts)]
        if number == len(lines) or not spans:
            spans += [
                cited.span(store.sets[id].spans, store.sets[id].description)
                for id in closed_sets(program[number - 1 : number])
            ]
        steps.append(ReasoningStep(f"{words[0].upper()}{words[1:]}: {shown[-1]}.", tuple(spans)))
    if len(steps) < least:
        steps.append(ReasoningStep(f"So the answer is {shown[-1]}.", steps[-1].citations))
    return tuple(steps)


def _values(values: Sequence[str]) -> str:
    if len(values) > _MAX_SHOWN:
        return f"{', '.join(values[:_MAX_SHOWN])} and {len(values) - _MAX_SHOWN} others"
    return ", ".join(values)


class _Citations:
    """Citations of facts, on the nodes of a support if they state them."""

    def __init__(self, nodes: Sequence[Node], support: Sequence[str]) -> None:
        self._texts = {node.id: node.observation.text for node in nodes}
        self._files = {blob.hash: image_file(blob) for node in nodes for blob in node.observation.blobs}
        self._support = support

    def fact(self, fact: Fact) -> CitedSpan:
        """Return the citation of a fact."""
        return self.span(fact.spans, f"the {fact.relation} of {fact.subject}: {show_value(fact.value)}")

    def span(self, spans: Sequence[FactSpan], words: str) -> CitedSpan:
        """Return the citation of the first span on a node of the support, or of the first one.

        :param words: quote for a region of an image.
        """
        span = next((span for span in spans if span.node in self._support), spans[0])
        if span.region is not None:
            return CitedSpan(span.node, words, 0, 0, span.image, span.region, self._files.get(span.image, ""))
        return CitedSpan(span.node, self._texts[span.node][span.start : span.end], span.start, span.end)
