"""The offline verifier: checks for error, empty, repeated and off topic, in this order; all else is new."""

from agentflow.offline._language import terms
from agentflow.trajectory import Judgement, JudgementRequest, Verdict

_MOSTLY = 0.9
"""Share of known words from which an observation counts as a repetition."""
_LITTLE = 5
"""Minimum number of content words for an off-topic verdict."""


def judge(request: JudgementRequest) -> Judgement:
    """Return the verdict on an observation."""
    if request.failure is not None:
        return Judgement(Verdict.ERROR, f"{request.failure.kind}: {request.failure.message}")
    if request.trouble:
        return Judgement(Verdict.ERROR, request.trouble)
    said = request.step.observation
    if not any(character.isalnum() for character in said):
        return Judgement(
            Verdict.NEW if request.step.images else Verdict.EMPTY,
            "" if request.step.images else "it says nothing",
        )
    if request.seen_elsewhere:
        return Judgement(Verdict.REPEATS, "the same words came back elsewhere in the tree")
    found = set(terms(said))
    told = set[str]().union(*(terms(step.observation) for step in request.path))
    if found and len(found & told) >= _MOSTLY * len(found):
        return Judgement(Verdict.REPEATS, "the path knew it already")
    topic = told.union(terms(request.seed), *(terms(step.intent) for step in (*request.path, request.step)))
    if not request.computes and len(found) >= _LITTLE and topic and found.isdisjoint(topic):
        return Judgement(Verdict.OFF_TOPIC, "it shares no telling word with the seed and the path")
    return Judgement(Verdict.NEW)
