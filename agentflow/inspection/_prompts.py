"""Prompts of the planner, built again from the journal: they are functions of what it holds."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from agentflow._typeguards import is_object
from agentflow.growth import ActionRecord
from agentflow.inspection._types import ShownMessage
from agentflow.models import ImagePart, Message, TextPart
from agentflow.runs import RunStart
from agentflow.sandbox import Tool
from agentflow.synthesis import SynthesisConfig
from agentflow.team import ObservationLimits, card_of, plan_messages
from agentflow.trajectory import Action, PlanRequest, Seed, Step, ToolCard, Verdict
from mcp_servers.core import Hints

_REPAIRABLE = (Verdict.ERROR, Verdict.EMPTY)


class PlanPrompts:
    """Prompts of the planner of one run."""

    def __init__(self, settings: Mapping[str, Any], start: RunStart) -> None:
        """:param settings: settings of the run, as its journal has them."""
        renamed = SynthesisConfig.renamed
        own = {renamed.get(name, name): value for name, value in settings.items()}
        fields = SynthesisConfig.model_fields
        chosen = {name: own[name] for name in own.keys() & fields.keys() & _USED}
        config = SynthesisConfig.model_construct(**chosen)
        self._growth = config.growth
        self._limits = ObservationLimits(each=config.max_observation_chars, total=config.max_evidence_chars)
        models = own.get("models")
        planner: object = models.get("planner") if is_object(models) else None
        self._sees = is_object(planner) and planner.get("vision") is True
        self._tools = {card.name: _tool(card) for card in start.tools}
        self._inputs = start.inputs

    def plan(
        self,
        seed: Seed,
        path: Sequence[str],
        records: Mapping[str, ActionRecord],
        verdicts: Mapping[str, tuple[Verdict, str]],
    ) -> tuple[ShownMessage, ...]:
        """Return the messages that asked for the first actions at the end of a path.

        :param path: spots from below the root to the node.
        """
        steps = tuple(_step(records[spot], *verdicts.get(spot, (Verdict.NEW, ""))) for spot in path)
        failed = bool(steps) and steps[-1].verdict in _REPAIRABLE
        request = PlanRequest(
            seed=seed.content,
            seed_description=self._growth.seed_description,
            tips=self._growth.tips,
            tools=tuple(card_of(tool, seed.kwargs, self._tools) for tool in self._tools.values()),
            path=steps,
            count=1 if failed else self._growth.children(len(steps)),
            remaining=self._growth.max_depth - len(steps),
            kwargs=seed.kwargs,
            inputs=self._inputs,
        )
        images = {blob.hash: blob.hash.encode() for step in steps for blob in step.images}
        return shown_messages(plan_messages(request, images if self._sees else {}, self._limits))


_USED = frozenset({
    "max_depth", "branching_factor", "depth_threshold", "action_similarity", "max_planner_calls", "on_unforkable",
    "recovery_share", "sampling_tips", "seed_description", "max_observation_chars", "max_evidence_chars",
})  # fmt: skip
"""Settings that are in prompts, or that growth needs."""


def shown_messages(messages: Sequence[Message]) -> tuple[ShownMessage, ...]:
    """Return messages as text, with their images by hash: the data of an image part is its hash here."""
    return tuple(
        ShownMessage(
            role=message.role,
            text="\n\n".join(part.text for part in message.parts if isinstance(part, TextPart)),
            images=tuple(part.data.decode() for part in message.parts if isinstance(part, ImagePart)),
        )
        for message in messages
    )


def _step(record: ActionRecord, verdict: Verdict, reason: str) -> Step:
    outcome = record.outcome
    failure = (
        outcome.trouble if outcome.failure is None else f"{outcome.failure.kind}: {outcome.failure.message}"
    )
    return Step(
        record.intent,
        record.action or Action("", {}),
        outcome.observation.text,
        verdict=verdict,
        images=outcome.observation.blobs,
        failure=failure or (reason if verdict is Verdict.ERROR else ""),
    )


def _tool(card: ToolCard) -> Tool:
    """Return a tool with this description, which can't be called."""
    backend, _, verb = card.name.partition("_")
    return Tool(
        backend=backend,
        verb=verb,
        title=card.name,
        description=card.description,
        input_schema=dict(card.schema),
        output_schema=None,
        hints=Hints(),
        bind=_refuse,
        invoke=_refuse,
        dump=_refuse,
        called=card.name,
        limits=card.limits,
        practices=card.practices,
        examples=card.examples,
    )


def _refuse(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("a tool of a run that is only read")
