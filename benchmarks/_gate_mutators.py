"""Mutators: twenty ways to spoil a good draft. Brute force confirms that each result is bad, and in the intended way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from random import Random
from typing import NamedTuple, TypeAlias

import msgspec

from agentflow.facts import QuestionKind as Kind
from benchmarks._gate_drafts import more_cases
from benchmarks._gate_held_out import flip_comparison, lose_item, swap_unit, use_stale_value, widen
from benchmarks._gate_labels import faults
from benchmarks._gate_mistakes import (
    add_instruction,
    ask_from_afar,
    ask_of_sibling,
    ask_other_question,
    ask_with_false_premise,
    flip_truth,
    know_it,
    leak,
    lose_evidence,
    pad,
    shift_by_one,
    show_on_one_page,
    skip_hop,
    state_answer,
    weaken,
)
from benchmarks._gate_scenes import Case

Mutate: TypeAlias = Callable[[Case, str, Random], Case | None]


class Mutator(NamedTuple):
    """A way to spoil drafts."""

    mutate: Mutate
    """Returns the spoilt draft; `None` if this one can't be spoilt so."""
    variants: tuple[str, ...]
    """Ways to do it, in turns."""
    faults: frozenset[str]
    """Faults of which brute force has to find one."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    """Kinds of drafts that it is applied to."""
    levels: bool = False
    """Apply it to drafts with descriptions, too."""


_ONE = (Kind.BRIDGE, Kind.INTERSECTION, Kind.AGGREGATE, Kind.ARITHMETIC, Kind.TEMPORAL)
_OPEN = (Kind.BRIDGE, Kind.INTERSECTION, Kind.AGGREGATE, Kind.ARITHMETIC, Kind.COUNT, Kind.LIST)
_ANSWER = frozenset({"answer"})

_ALL: dict[str, Mutator] = {
    "sibling value": Mutator(ask_of_sibling, ("answer", "words", "extraction"), _ANSWER, (Kind.BRIDGE, Kind.INTERSECTION)),
    "wrong hop": Mutator(skip_hop, ("relation", "short", "answer"), _ANSWER, (Kind.BRIDGE,)),
    "unit": Mutator(swap_unit, ("answer", "extraction"), _ANSWER, (Kind.BRIDGE, Kind.ARITHMETIC, Kind.AGGREGATE)),
    "off by one": Mutator(shift_by_one, ("answer", "extraction"), _ANSWER, (*_ONE, Kind.COUNT)),
    "flipped comparison": Mutator(
        flip_comparison, ("words", "answer", "extraction"), _ANSWER, (Kind.COMPARISON, Kind.AGGREGATE)
    ),
    "flipped yes/no": Mutator(flip_truth, ("answer", "words", "extraction"), _ANSWER, (Kind.YES_NO, Kind.TEMPORAL)),
    "incomplete list": Mutator(lose_item, ("answer", "members", "extraction"), _ANSWER, (Kind.LIST,)),
    "stale value": Mutator(
        use_stale_value, ("words", "no time", "later page", "unread page"),
        frozenset({"answer", "contradiction"}), (Kind.BRIDGE, Kind.ARITHMETIC),
    ),
    "second answer": Mutator(weaken, ("both", "words", "unread", "outside"), _ANSWER, (Kind.INTERSECTION,)),
    "padded citations": Mutator(pad, ("near", "far"), frozenset({"hops"}), (Kind.BRIDGE,)),
    "one-page shortcut": Mutator(
        show_on_one_page, ("read", "unread"), frozenset({"page"}),
        (Kind.BRIDGE, Kind.COMPARISON, Kind.ARITHMETIC, Kind.YES_NO, Kind.INTERSECTION),
    ),
    "stated answer": Mutator(state_answer, ("aside", "remark", "bridge"), frozenset({"leak"}), _OPEN),
    "paraphrased leak": Mutator(leak, ("aside", "remark", "apposition"), frozenset({"leak"}), _ONE),
    "unrelated": Mutator(ask_other_question, ("names", "question"), frozenset({"answer"}), levels=True),
    "off-seed": Mutator(ask_from_afar, ("other world", "stray"), frozenset({"seed"}), levels=True),
    "false premise": Mutator(
        ask_with_false_premise, ("words", "kind", "program", "extraction"), _ANSWER,
        (Kind.BRIDGE, Kind.COMPARISON, Kind.TEMPORAL, Kind.YES_NO),
    ),
    "closed-book known": Mutator(know_it, ("facts",), frozenset({"known"}), (*_ONE, Kind.COMPARISON, Kind.YES_NO), levels=True),
    "missing evidence": Mutator(
        lose_evidence, ("ids", "observation", "sentence"), frozenset({"answer", "evidence"}),
        (*_ONE, Kind.COMPARISON, Kind.YES_NO),
    ),
    "over-obfuscated": Mutator(widen, ("words", "program", "vague"), frozenset({"answer", "unreadable"}), levels=True),
    "injected instruction": Mutator(
        add_instruction, ("end", "start", "page"), frozenset({"instruction", "answer"}), _ONE
    ),
}  # fmt: skip
MUTATORS = tuple(_ALL)
"""Names of the mutators."""
HELD_OUT = ("unit", "flipped comparison", "incomplete list", "stale value", "over-obfuscated")
"""Mutators that were not used while the checks were developed."""
TRIES = 400
"""Drafts that a mutator may look at for one set."""


def bad_cases(kind: str, seed: int, count: int) -> Iterator[Case]:
    """Yield drafts that a mutator spoilt, its variants in turns."""
    mutator = _ALL[kind]
    made = 0
    asked: set[str] = set()
    material = more_cases(seed, kind, mutator.kinds, levels=mutator.levels)
    for number, base in enumerate(islice(material, TRIES)):
        variant = mutator.variants[made % len(mutator.variants)]
        spoilt = mutator.mutate(base, variant, Random(f"{seed} {kind} {number}"))
        if spoilt is None:
            continue
        question = " ".join(spoilt.draft.question.split())
        spoilt = replace(
            spoilt, kind=kind, variant=variant, draft=msgspec.structs.replace(spoilt.draft, question=question)
        )
        if question in asked or not faults(spoilt) & mutator.faults:
            continue
        asked.add(question)
        yield spoilt
        made += 1
        if made == count:
            return
    raise ValueError(f"only {made} of {count} drafts could be spoilt: {kind}")
