"""Steps of a path, as tests write them."""

from collections.abc import Sequence

from agentflow.trace import Action, ActionOutcome, Blob, Failure, Node, Observation, Text, Verdict


def seen_step(
    intent: str,
    action: Action,
    text: str,
    verdict: Verdict = Verdict.NEW,
    images: Sequence[Blob] = (),
    failure: Failure | None = None,
    trouble: str = "",
) -> Node:
    """Return a step whose action returned a text and images."""
    parts = (*((Text(text),) if text else ()), *images)
    outcome = ActionOutcome(Observation(parts), failure, trouble)
    return Node(intent=intent, action=action, outcome=outcome, verdict=verdict)
