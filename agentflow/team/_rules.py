"""The verifier's rules: what an observation is worth, without a model."""

import re

from agentflow.text import (
    SHINGLE_LENGTH,
    add_plurals,
    count_words,
    is_content_word,
    shingles,
    word_set,
    words,
)
from agentflow.trajectory import Judgement, JudgementRequest, Step, Verdict

__all__ = ["judge_by_rule", "judge_plainly"]

REPEATED = 0.9
"""Share of a text that must be known for it to say nothing new."""
SHORT = 12
"""Fewer words are compared as a whole: so few are alike by chance."""
FOREIGN = 20
"""Content words that a text needs before it can be called off topic."""

_NOTHING = re.compile(
    r"(?:none|null|nil|nan|undefined|empty|n a"
    r"|(?:(?:there (?:are|were|is|was) )?(?:no|0|zero)(?: \w+)? "
    r"(?:hits?|results?|match(?:es)?|documents?|entries|rows?|data|output|files?|items?|jobs?|variables|content|answers?)"
    r"|nothing|not|none)(?: (?:was|were))?(?: (?:found|returned|available|matched))?)"
)
_NONE_AT_ALL = re.compile(r"\S+: none", re.IGNORECASE)

NEW = Judgement(Verdict.NEW)


def judge_by_rule(request: JudgementRequest) -> Judgement:
    """The verdict by rule: error, empty, repeats, off topic, in this order; else new.

    It repeats when 90 % of it stand in the path already, or the same words came back elsewhere in the tree. It is
    off topic when it says much and shares no telling word with the seed, the intents and what the path found;
    tools that compute are spared.
    """
    plain = judge_plainly(request)
    if plain is not None:
        return plain
    found = words(request.step.observation)
    if found and request.seen_elsewhere:
        return Judgement(Verdict.REPEATS, "the same came back elsewhere in the tree")
    if _repeats(found, request):
        return Judgement(Verdict.REPEATS, "the path knows it already")
    if not request.computes and _is_foreign(request):
        return Judgement(Verdict.OFF_TOPIC, "it shares no telling word with the seed and the path")
    return NEW


def judge_plainly(request: JudgementRequest) -> Judgement | None:
    """The verdict where it is plain to see: error, empty. `None`: it takes more."""
    if request.failure is not None:
        return Judgement(Verdict.ERROR, f"{request.failure.kind}: {request.failure.message}")
    if request.trouble:
        return Judgement(Verdict.ERROR, request.trouble)
    if not request.step.images and _says_nothing(request.step.observation):
        return Judgement(Verdict.EMPTY, "nothing came back")
    return None


def _says_nothing(text: str) -> bool:
    found = words(text)
    if len(found) > 100:
        return False
    if not found or _NOTHING.fullmatch(" ".join(found)):
        return True
    return all(_NONE_AT_ALL.fullmatch(line.strip()) for line in text.splitlines() if line.strip())


def _repeats(found: tuple[str, ...], request: JudgementRequest) -> bool:
    if request.step.images:
        return any(_same(request.step, step) for step in request.path)
    if len(found) < SHORT:
        return any(words(step.observation) == found for step in request.path)
    text, path = request.step.observation, [step.observation for step in request.path]
    unknown = len(word_set(text).difference(*map(word_set, path)))
    # An unknown word makes the run that begins with it unknown, but for the last few, which begin none. So most new
    # texts are told without looking at the path's runs.
    if unknown - SHINGLE_LENGTH + 1 > (1 - REPEATED) * len(found):
        return False
    own = shingles(text)
    return len(own.difference(*map(shingles, path))) <= (1 - REPEATED) * len(own)


def _same(one: Step, other: Step) -> bool:
    return one.images == other.images and words(one.observation) == words(other.observation)


def _is_foreign(request: JudgementRequest) -> bool:
    texts = [request.seed, request.step.intent]
    for step in request.path:
        texts += [step.observation, step.intent]
    own, known = word_set(request.step.observation), [word_set(text) for text in texts]
    if any(is_content_word(word) for each in known for word in own & each):
        return False
    telling = frozenset(filter(is_content_word, own))
    if count_words(telling) < FOREIGN:
        return False
    forms = add_plurals(telling)
    return all(forms.isdisjoint(each) for each in known) and _could_share(telling, known)


def _could_share(found: frozenset[str], known: list[frozenset[str]]) -> bool:
    """Whether they have a kind of letters in common: a text in another script may well be on the subject."""
    return not _scripts(found).isdisjoint(_scripts(frozenset[str]().union(*known)))


def _scripts(found: frozenset[str]) -> frozenset[bool]:
    return frozenset(word[0] < "\u0250" for word in found)
