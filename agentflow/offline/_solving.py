"""The four roles of a team that solves tasks: they look up the names in the question, and what these lead to.

To answer, all questions that the observations can answer are generated, and compared with the one asked.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import permutations, product
from typing import Any, NamedTuple

import msgspec
from rapidfuzz import fuzz, process

from agentflow.offline._arguments import LOOKING, Leads, ids_in, kind_of, urls_in, uses_of
from agentflow.offline._language import bounded, names, passages, terms
from agentflow.offline._questions import answer_texts
from agentflow.offline._statements import SLOT, Statement, read
from agentflow.trace import (
    Action,
    AnalysisRequest,
    Assessment,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    Memory,
    NextStep,
    NextStepRequest,
    QueryAnalysis,
    Solution,
    SolutionRequest,
    Summary,
    SummaryRequest,
    ToolCard,
    VerificationRequest,
    canonical,
)

_HUB = 8
"""Number of hops from one thing from which it counts as a hub."""
_HOPS = 3
"""Maximum number of hops to one thing that are tried, best first."""


class KnownFact(NamedTuple):
    """A fact, and the observations that contain it."""

    fact: Statement
    places: tuple[int, ...]
    """Numbers of these observations, ascending."""


class Hop(NamedTuple):
    """A step from one thing to another."""

    start: str
    start_shown: str
    """The start as written in the middle of a sentence."""
    end: str
    phrase: str
    """Description of the end, with a slot for the start."""
    found: KnownFact
    worth: int
    """Readability score."""


def describe_end(hops: tuple[Hop, ...]) -> str:
    """Return a description of the thing that the hops lead to."""
    phrase = hops[0].start_shown
    for hop in hops:
        phrase = hop.phrase.replace(SLOT, phrase)
    return phrase


class Knowledge(NamedTuple):
    """Facts of all observations together."""

    found: tuple[KnownFact, ...]
    """Facts, each once."""
    classes: dict[str, str]
    """Classes of things."""
    introductions: dict[str, tuple[str, int]]
    """For each class, the sentence that states it, and the first observation with it."""
    hops: dict[str, list[Hop]]
    """Best hops to each thing. Hops from a hub score lower."""


def learn(texts: Iterable[str]) -> Knowledge:
    """Read all texts."""
    documents_of: dict[Statement, list[int]] = {}
    classes: dict[str, str] = {}
    introductions: dict[str, tuple[str, int]] = {}
    for number, text in enumerate(texts, start=1):
        reading = read(text)
        for fact in dict.fromkeys(reading.facts):
            documents_of.setdefault(fact, []).append(number)
        for name, class_ in reading.classes.items():
            classes.setdefault(name, class_)
            introductions.setdefault(name, (reading.introductions[name], number))
    facts = tuple(KnownFact(fact, tuple(numbers)) for fact, numbers in documents_of.items())
    return Knowledge(facts, classes, introductions, _hops(facts, classes))


def _hops(facts: tuple[KnownFact, ...], classes: dict[str, str]) -> dict[str, list[Hop]]:
    """Return the best hops to each thing. A backward hop is used only if no forward hop has words for it."""
    hops: dict[str, list[Hop]] = {}
    backwards: dict[tuple[str, str], list[Hop]] = {}
    for entry in facts:
        fact = entry.fact
        if fact.described and fact.value != fact.subject:
            phrase, worth = fact.described, 6
            if phrase.startswith("the place where"):
                phrase = phrase.replace("the place", f"the {classes.get(fact.value, 'place')}", 1)
                worth = 4
            hops.setdefault(fact.value, []).append(
                Hop(fact.subject, fact.shown, fact.value, phrase, entry, worth)
            )
        if fact.inverse and (class_ := classes.get(fact.subject)):
            phrase = f"the {class_} {fact.inverse}"
            backwards.setdefault((fact.inverse, fact.value), []).append(
                Hop(fact.value, fact.value_shown, fact.subject, phrase, entry, 2)
            )
    for same in backwards.values():
        if len({hop.end for hop in same}) == 1:
            hops.setdefault(same[0].end, []).append(same[0])
    leading = Counter(hop.start for hops_to_end in hops.values() for hop in hops_to_end)
    return {
        end: sorted(
            (hop._replace(worth=hop.worth - 2 * min(leading[hop.start], _HUB)) for hop in hops_to_end),
            key=lambda hop: -hop.worth,
        )
        for end, hops_to_end in hops.items()
    }


def ways(end: str, hops: dict[str, list[Hop]]) -> Iterator[tuple[Hop, ...]]:
    """Yield the one or two hops that lead to a thing."""
    for hop in hops.get(end, [])[:_HOPS]:
        yield (hop,)
        for far in hops.get(hop.start, [])[:_HOPS]:
            yield (far, hop)


_MAX_SUMMARY = 20_000
_COUNTING = re.compile(r"\bhow (?:many|much|far|long|old)\b", re.IGNORECASE)
_BARE = re.compile(r"-?\d+(?:\.\d+)?")
_SAME = 92.0
"""Minimum similarity, of 100, for two wordings of one question."""
_LIKE = 75.0
"""Minimum similarity for an answer that is a guess."""
_TWENTY_FOUR = re.compile(r"\b24\b")
_OPTION = re.compile(r"^\W*(?P<letter>[A-Z])[.):] +(?P<text>\S.*)$", re.MULTILINE)
_ASKING = re.compile(r"[^\s.!?:][^.!?\n]*\?")
_YEARS = "How many years passed between the year in which {} and the year in which {}?"


class ShortAnswer(NamedTuple):
    """An answer, and its certainty."""

    answer: str
    """The answer, as short as possible."""
    working: str
    """The sentence it is based on."""
    sure: bool
    """The observations answer this question; otherwise only a similar one."""


class _SolvingCandidate(NamedTuple):
    question: str
    answer: str
    working: str


def analyse(request: AnalysisRequest) -> QueryAnalysis:
    """Return the names in the question, and the tools that can look them up."""
    named = names(request.question) or terms(request.question)[:6]
    looking = [tool.name for tool in _by_use(request.tools)]
    return QueryAnalysis(
        concise_summary=" ".join(request.question.split())[:300],
        required_skills="Looking things up, and following what they mention.",
        relevant_tools=", ".join(looking) or "none",
        additional_considerations=f"Look up: {', '.join(named)}." if named else "",
    )


def next_step(request: NextStepRequest) -> NextStep:
    """Return the best call not made yet. Its arguments are the context, from which the executor reads them."""
    texts = _texts(request.memory)
    made_calls = {canonical(turn.action) for turn in request.memory.turns if turn.action is not None}
    followed = _followed(request.memory)
    leads = _leads(request.question, texts, followed)
    for tool in _by_use(request.tools):
        kind = kind_of(tool)
        assert kind is not None, "only such tools are in use"
        for use in uses_of(tool, kind, leads):
            if canonical(Action(tool.name, use.arguments)) not in made_calls:
                context = msgspec.json.encode(use.arguments).decode()
                return NextStep("It was named and not looked into yet.", context, use.intent, tool.name)
    tool = request.tools[0]
    return NextStep("Nothing is left to look up.", "{}", "See what there is.", tool.name)


def command(request: CommandRequest) -> Command:
    """Return the arguments that the planner proposed; without any, those that fit its words."""
    arguments = _parse_arguments(request.step.context, request.tool)
    if arguments is None:
        words = f"{request.step.sub_goal} {request.step.context}"
        kind = kind_of(request.tool)
        if kind is not None:
            leads = _leads(words, (), frozenset())
            arguments = next((use.arguments for use in uses_of(request.tool, kind, leads)), None)
    return Command(request.step.sub_goal, arguments or {})


def _parse_arguments(context: str, tool: ToolCard) -> dict[str, Any] | None:
    """Parse arguments written as JSON, or as lines of `name: value`."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(context, type=dict[str, Any])
    lines = [line.partition(": ") for line in context.splitlines()]
    properties = tool.schema.get("properties", {})
    if not lines or not all(colon and name in properties for name, colon, _ in lines):
        return None
    return {name: value for name, _, value in lines}


def decide(request: VerificationRequest) -> Decision:
    """Stop as soon as the observations answer the question."""
    return _decision(_answered(request.question, request.memory))


def decided_step(request: DecisionRequest) -> DecidedStep:
    """Return the decision and the next step."""
    decision = _decision(_answered(request.next.question, request.next.memory))
    return DecidedStep(decision, None if decision.stop else next_step(request.next))


def solve(request: SolutionRequest) -> Solution:
    """Answer from the observations: surely, else by a guess, else with nothing."""
    answer = _answered(request.question, request.memory)
    if answer is None:
        return Solution("What was seen does not answer the question.", "")
    return Solution(answer.working, answer.answer)


def summarise(request: SummaryRequest) -> Summary:
    """Return all text of the turns that fits."""
    summaries = [request.summary, *(turn.result for turn in request.turns)]
    return Summary("\n".join(text for text in summaries if text)[:_MAX_SUMMARY])


def _answered(question: str, memory: Memory) -> ShortAnswer | None:
    """Return the answer in the observations; without a sure one, a number that the last call computed."""
    answer = answer_from(question, _texts(memory))
    if (answer is not None and answer.sure) or not memory.turns or not _COUNTING.search(question):
        return answer
    last = memory.turns[-1].result.strip()
    return ShortAnswer(last, f"It was computed: {last}.", sure=True) if _BARE.fullmatch(last) else answer


def _decision(answer: ShortAnswer | None) -> Decision:
    if answer is None:
        return Decision("Nothing that was seen answers the question.", Assessment.INCOMPLETE, stop=False)
    if not answer.sure:
        return Decision("Something like it was seen.", Assessment.UNVERIFIED, stop=False)
    return Decision(answer.working, Assessment.COMPLETE, stop=True)


def _texts(memory: Memory) -> tuple[str, ...]:
    return (*([memory.summary] if memory.summary else []), *(turn.result for turn in memory.turns))


def _followed(memory: Memory) -> frozenset[str]:
    values = (value for turn in memory.turns if turn.action for value in turn.action.arguments.values())
    return frozenset(value.lower() for value in values if isinstance(value, str))


def _leads(question: str, texts: tuple[str, ...], followed: frozenset[str]) -> Leads:
    """Return the names in the question, then what these led to, then everything mentioned."""
    question = asked_in(question)
    subjects = dict.fromkeys(names(question))
    subjects.update(dict.fromkeys(mentioned_by(question, texts)))
    subjects.setdefault(" ".join(terms(question)[:6]))
    subjects.update(dict.fromkeys(name for text in reversed(texts) for name in names(text)))
    return Leads(
        tuple(name for name in subjects if name and name.lower() not in followed),
        tuple(id for text in reversed(texts) for id in ids_in(text) if id.lower() not in followed),
        tuple(url for text in reversed(texts) for url in urls_in(text) if url.lower() not in followed),
        tuple(reversed(texts)),
    )


def _by_use(tools: tuple[ToolCard, ...]) -> list[ToolCard]:
    """Return the tools that return text, searches first, then those that compute."""
    order = (*LOOKING, "sql", "python", "shell", "plain")
    kinds = [(kind.name, tool) for tool in tools if (kind := kind_of(tool)) is not None]
    return [tool for _, tool in sorted(kinds, key=lambda entry: order.index(entry[0]))]


def answer_from(question: str, texts: tuple[str, ...]) -> ShortAnswer | None:
    """Return the answer that the texts give to a question; `None` without one."""
    if (expression := _twenty_four(question)) is not None:
        return ShortAnswer(expression, f"{expression} = 24.", sure=True)
    if options := list(_OPTION.finditer(question)):
        return _chosen(question[: options[0].start()], options, texts)
    question = asked_in(question)
    read = answer_texts(question, texts)
    if read is not None:
        return ShortAnswer(read.answer, "; ".join(fact.quote for fact in read.facts), sure=True)
    candidates = _candidates(texts)
    if not candidates:
        return None
    best = process.extractOne(
        _words(question),
        [_words(candidate.question) for candidate in candidates],
        scorer=fuzz.token_sort_ratio,
    )
    if best[1] < _LIKE:
        return None
    best_candidate = candidates[best[2]]
    return ShortAnswer(best_candidate.answer, best_candidate.working, sure=best[1] >= _SAME)


def asked_in(question: str) -> str:
    """Return the question without instructions on the format of the answer; the whole text if it has no question mark."""
    return " ".join(_ASKING.findall(question)) or question


def mentioned_by(question: str, texts: tuple[str, ...]) -> Iterator[str]:
    """Yield the names that the texts lead to from the question; those that share the most words with it come first."""
    question_terms = set(terms(question))
    shared_terms: dict[str, int] = {}
    for hops in learn(texts).hops.values():
        for hop in hops:
            hop_terms = set(terms(hop.phrase.replace(SLOT, hop.start_shown)))
            shared = len(hop_terms & question_terms)
            if shared >= 2 or (shared and bounded(hop.start, question)):
                shared_terms[hop.end] = max(shared, shared_terms.get(hop.end, 0))
    yield from sorted(shared_terms, key=lambda name: -shared_terms[name])


@lru_cache(maxsize=64)
def _candidates(texts: tuple[str, ...]) -> tuple[_SolvingCandidate, ...]:
    """Return every question that these texts answer, over at most two intermediate facts."""
    knowledge = learn(texts)
    facts = (known_fact.fact for known_fact in knowledge.found)
    single = (_SolvingCandidate(fact.question, fact.value, fact.sentence) for fact in facts)
    return (*single, *_chained(knowledge), *_spans(knowledge))


def _chained(knowledge: Knowledge) -> Iterator[_SolvingCandidate]:
    for known_fact in knowledge.found:
        fact = known_fact.fact
        for hops in ways(fact.subject, knowledge.hops):
            working = " ".join([*(hop.found.fact.sentence for hop in hops), fact.sentence])
            yield _SolvingCandidate(fact.ask.replace(SLOT, describe_end(hops)), fact.value, working)


def _spans(knowledge: Knowledge) -> Iterator[_SolvingCandidate]:
    dated: dict[str, Statement] = {}
    for known_fact in knowledge.found:
        if known_fact.fact.event:
            dated.setdefault(known_fact.fact.value, known_fact.fact)
    for earlier, later in permutations(dated.values(), 2):
        years = int(later.value) - int(earlier.value)
        if years > 0 and earlier.subject != later.subject:
            question = _YEARS.format(earlier.event_shown, later.event_shown)
            working = f"{earlier.sentence} {later.sentence} {later.value} - {earlier.value} = {years}."
            yield _SolvingCandidate(question, str(years), working)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _chosen(question: str, options: list[re.Match[str]], texts: tuple[str, ...]) -> ShortAnswer | None:
    """Return the option in the sentence that shares the most words with the question."""
    question_terms = set(terms(question))
    sentences = [sentence for text in texts for passage in passages(text) for sentence in passage.sentences]
    stated = [
        ShortAnswer(option["letter"], sentence, sure=len(question_terms & set(terms(sentence))) >= 2)
        for option, sentence in product(options, sentences)
        if bounded(option["text"].strip(), sentence)
    ]
    return max(
        stated, key=lambda answer: len(question_terms.intersection(terms(answer.working))), default=None
    )


def _twenty_four(question: str) -> str | None:
    """Return the expression that makes 24 of four numbers."""
    aim = _TWENTY_FOUR.search(question)
    numbers = [
        int(word)
        for word in re.findall(r"(?<![\w.])\d{1,2}(?![\w.]*\w)", question[: aim.start()] if aim else "")
    ]
    if len(numbers) != 4:
        return None
    return _made(tuple((float(number), str(number)) for number in numbers))


def _made(numbers: tuple[tuple[float, str], ...]) -> str | None:
    """Combine numbers, each with its expression, two at a time until one is left."""
    if len(numbers) == 1:
        return numbers[0][1] if abs(numbers[0][0] - 24) < 1e-9 else None
    for i, j in permutations(range(len(numbers)), 2):
        (left, left_text), (right, right_text) = numbers[i], numbers[j]
        rest = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
        results = [(left + right, "+"), (left - right, "-"), (left * right, "*")]
        if right:
            results.append((left / right, "/"))
        for result, sign in results:
            if (made := _made((*rest, (result, f"({left_text} {sign} {right_text})")))) is not None:
                return made
    return None
