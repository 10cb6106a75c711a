"""The offline planner: follows leads that were mentioned and not looked into yet."""

from collections.abc import Iterator

from agentflow.offline._arguments import Kind, Use, kind_of, uses_of
from agentflow.offline._leads import Leads, leads_of
from agentflow.trajectory import Action, Plan, PlanRequest, Proposal, ToolCard, canonical

_LOOKING = ("search", "read", "visit", "other")
"""Kinds of tools that return new text."""


def plan(request: PlanRequest) -> Plan:
    """Propose as many different actions as requested, spread over the tools; fewer only if there are no more."""
    leads = leads_of(request)
    known = {canonical(action) for action in (*(step.action for step in request.path), *request.taken)}
    proposals: list[Proposal] = []
    for turn in _turns(request, leads):
        tool, use = turn
        name = canonical(Action(tool.name, use.arguments))
        if name not in known:
            known.add(name)
            proposals.append(Proposal(use.intent, tool.name, use.arguments))
        if len(proposals) >= request.count:
            break
    return Plan(tuple(proposals))


def _turns(request: PlanRequest, leads: Leads) -> Iterator[tuple[ToolCard, Use]]:
    """Yield tool calls, each tool in turn; tools that only describe themselves come last."""
    kinds = [(tool, kind) for tool in request.tools if (kind := kind_of(tool)) is not None]
    ordered = _ordered(kinds, len(request.path), bool(leads.observed))
    waiting = [(tool, iter(uses_of(tool, kind, leads))) for tool, kind in ordered]
    while waiting:
        going: list[tuple[ToolCard, Iterator[Use]]] = []
        for tool, uses in waiting:
            use = next(uses, None)
            if use is not None:
                yield tool, use
                going.append((tool, uses))
        waiting = going
    for tool, kind in kinds:
        if kind.name == "plain":
            yield from ((tool, use) for use in uses_of(tool, kind, leads))


def _ordered(kinds: list[tuple[ToolCard, Kind]], depth: int, seen: bool) -> list[tuple[ToolCard, Kind]]:
    """Return the tools in order: a search first, the others rotated by depth. Before any observation, only a search."""
    looking = [entry for entry in kinds if entry[1].name in _LOOKING]
    computing = [entry for entry in kinds if entry[1].name in ("shell", "python", "sql")]
    looking.sort(key=lambda entry: _LOOKING.index(entry[1].name))
    if not looking:
        return _turned(computing, depth)
    reading = [entry for entry in looking[1:] if entry[1].name == "read"]
    others = [entry for entry in looking[1:] if entry not in reading]
    if not seen:
        return [looking[0]]
    # A search has shown most of a document already, so reading all of it is the last choice.
    return [looking[0], *_turned([*others, *computing], depth), *reading]


def _turned(entries: list[tuple[ToolCard, Kind]], depth: int) -> list[tuple[ToolCard, Kind]]:
    start = depth % len(entries) if entries else 0
    return [*entries[start:], *entries[:start]]
