"""Typed reading of a model's answer in prose, and its comparison with the expected value."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from agentflow.text import Quantity, find_quantities, quantity_of, scale_of, singular
from agentflow.values._clauses import (
    MASK,
    Span,
    asserted,
    has_alternatives,
    is_denied,
    is_uncertain,
    mask,
    plain_text,
    sentences,
    within,
)
from agentflow.values._names import CONNECTING, NameReader
from agentflow.values._numbers import (
    DateMention,
    find_dates,
    join_units,
    plain_numbers,
    same_number,
    stated_number,
)
from agentflow.values._values import (
    BoolValue,
    DateValue,
    EntityValue,
    ListValue,
    NumberValue,
    ScalarValue,
    TextValue,
    Value,
    bare_text,
    records_of,
    split_list,
    values_agree,
)

_VAGUE_DATE: Final = re.compile(
    r"(?:\b(?:circa|ca|c|about|around|approximately|roughly|before|after|by|until|till|early|late|mid|middle of|spring|summer|autumn"
    r"|winter|fall|end of|beginning of|start of|prior to|than|between|nearly|decade of|century|some ?time in)\b\.?(?: in| of)?|~|≈|-)\s*(?:the |year )*$",
    re.IGNORECASE,
)
_NEXT_WORD: Final = re.compile(r" ?-?([^\W\d_]+)")
_MAX_DATES: Final = 64
"""Number of dates that are compared with each other."""
_IN: Final = re.compile(r"\b(?:in|since|from|of|year|until|till|by)\s$", re.IGNORECASE)
"""Words before a year, after which a plural is the next word of the sentence: "in 1841 ships …"."""
_EARLY, _FAR = 1000, 3000
"""Range of the numbers that are usually years."""
_BARE: Final = re.compile(rf"[\W_{MASK}]*")


def read_date_answer(answer: str, like: DateValue, question: str = "") -> DateValue | None:
    """Return the date that an answer states, if it is only one."""
    dates = read_dates(answer, like, question)
    return dates[0] if len(dates) == 1 else None


def read_dates(answer: str, like: DateValue, question: str = "") -> list[DateValue]:
    """Return the dates that an answer states; none if it hedges. A year with a day in it counts as that day only."""
    line = answer.replace("\n", " ; ")
    mentions = [date for date in find_dates(line) if not date.bare or _may_be_year(line, date, like)]
    masked = mask(line, [(mention.start, mention.end) for mention in mentions])
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked):
        return []
    stated = asserted(masked)
    question_dates = {_date(date) for date in find_dates(" ".join(question.split()))}
    exact = [
        mention
        for mention in mentions
        if within((mention.start, mention.end), stated)
        and not _VAGUE_DATE.search(line, max(0, mention.start - _NEAR), mention.start)
    ]
    first = next(iter(sentences(masked)), (0, 0))
    if exact and _BARE.fullmatch(masked, *first):
        exact = [mention for mention in exact if mention.end <= first[1]]
    dates = list(dict.fromkeys(map(_date, exact)))
    dates = [date for date in dates if date not in question_dates] or dates
    return [
        date
        for date in dates
        if not any(date != other and _contains(date, other) for other in dates[:_MAX_DATES])
    ]


def _may_be_year(line: str, mention: DateMention, like: DateValue) -> bool:
    """Return whether a bare number is a year: no unit follows it, and it has as many digits as the expected one."""
    word = _NEXT_WORD.match(line, mention.end)
    measured = word is not None and (
        quantity_of(Decimal(1), word[1]).known
        or (
            singular(word[1]) != word[1]
            and word[1].lower() not in CONNECTING
            and not _IN.search(line, max(0, mention.start - _NEAR), mention.start)
        )
    )
    usual = _EARLY <= mention.year < _FAR or not _EARLY <= abs(like.year) < _FAR
    return not measured and usual


def _date(mention: DateMention) -> DateValue:
    return DateValue(mention.year, mention.month, mention.day)


def _contains(date: DateValue, other: DateValue) -> bool:
    """Return whether a date is a year or month that contains the other date."""
    return date.year == other.year and (not date.month or (date.month == other.month and not date.day))


_PRONOUN: Final = re.compile(
    r"\bone\b(?= (?:of|that|which|who|with|in|is|was|has|had|and|or|built|by)\b(?! a half)|[,.;])|(?<=[a-z] )\bone\b(?=\W*$)",
    re.IGNORECASE,
)
"""The word `one` where it is no number."""
_BOUND: Final = re.compile(
    r"\b(?:(?:more|less|fewer|greater|higher|lower|larger|smaller|other|better|longer|shorter) than|over|under|above|below|at least|at most|up to|nearly|almost"
    r"|beyond|exceed(?:s|ed|ing)?|close to|minimum of|maximum of|between|within|approaching|not quite|just short of)\s*[$€£¥]?$|[<>≤≥±]\s*$",
    re.IGNORECASE,
)
"""Words before a number that is only a bound."""
_BOUND_AFTER: Final = re.compile(
    r"\+|\s?±|\s?(?:plus\b|and (?:up|more|above|over|counting)\b)", re.IGNORECASE
)
_TOTAL: Final = re.compile(r" of (?:the|these|those|all|its|their) ", re.IGNORECASE)
"""Words between a number and the total it is a part of: "3 of the 7"."""
_JOINED: Final = re.compile(r"\s*(?:-|to|and|until|through|,|/|×|x|by)\s*", re.IGNORECASE)
_NEXT_WORDS: Final = re.compile(r"(?:[ -][^\W\d_]+){1,4}")
_NEAR: Final = 28
"""Characters before a number in which a word makes it a bound."""


class NumberMention(NamedTuple):
    """Number of a text."""

    start: int
    end: int
    """Index after the number and its unit, if that is known."""
    quantity: Quantity
    nouns: frozenset[str]
    """The next words, in the singular: the thing that it counts is one of them."""
    vague: bool
    """It is a bound only, as in "more than 34"."""


def read_number_answer(answer: str, like: NumberValue, question: str = "") -> NumberValue | None:
    """Return the number that an answer states, if it is only one, with the expected unit if it states none."""
    values = read_numbers(answer, like, question)
    first = next(iter(values), None)
    if first is None or not all(
        same_number((first.amount, first.unit), (value.amount, value.unit)) for value in values
    ):
        return None
    return first


def read_numbers(
    answer: str, like: NumberValue, question: str = "", *, listed: bool = False
) -> list[NumberValue]:
    """Return the numbers that an answer states and that measure what the expected one does; none if it hedges.

    Numbers in the expected unit come before others of the same kind, then those without a unit.

    :param listed: several numbers are expected: `1 year and 9 months` are two.
    """
    scale, unit = scale_of(like.unit)
    if scale > 1:
        like = NumberValue(like.amount * scale, unit)
    line = answer.replace("\n", " ; ")
    for source in dict.fromkeys((_PRONOUN.sub("that", line), line)):
        plain = join_units(plain_numbers(source), listed=listed)
        if mentions := find_numbers(plain):
            kept = _answering(plain, mentions)
            return [] if kept is None else _select(kept, like, question)
    return []


def find_numbers(plain: str) -> list[NumberMention]:
    """Return the numbers of a text from `plain_numbers`, without dates and ordinals."""
    dates = [(date.start, date.end) for date in find_dates(plain) if not date.bare]
    mentions: list[NumberMention] = []
    for first, last, quantity in find_quantities(plain):
        if quantity.kind == "ordinal" or not quantity.amount.is_finite():
            continue
        start = last - len(plain[first:last].lstrip())
        written = plain[start:last].removesuffix("" if quantity.known else quantity.unit)
        end = start + len(written.rstrip(" -"))
        if _overlaps((start, end), dates) or (mentions and _TOTAL.fullmatch(plain, mentions[-1].end, start)):
            continue
        after = _NEXT_WORDS.match(plain, end)
        words = (after[0] if after else "").replace("-", " ").split()
        vague = bool(_BOUND.search(plain, max(0, start - _NEAR), start) or _BOUND_AFTER.match(plain, end))
        nouns = frozenset(quantity_of(quantity.amount, word).kind for word in words)
        mentions.append(NumberMention(start, end, quantity, nouns, vague))
    return _with_shared_units(plain, mentions)


def _fitting(mentions: Sequence[NumberMention], like: NumberValue) -> list[NumberMention]:
    """Return the numbers that measure the same thing as the expected one, as far as the text tells."""
    wanted = quantity_of(like.amount, like.unit)
    ranks = [_rank(mention, wanted, _noun(like)) for mention in mentions]
    best = min(ranks, default=0)
    return [mention for mention, rank in zip(mentions, ranks, strict=True) if rank == best]


def _rank(mention: NumberMention, wanted: Quantity, noun: str) -> int:
    """Return how well a number fits the expected one; 0 is best."""
    quantity = mention.quantity
    if wanted.known and quantity.known and wanted.kind == quantity.kind:
        return 0 if wanted.factor == quantity.factor else 1
    if noun and not wanted.known and noun in mention.nouns:
        return 0
    if _measures(quantity) and (noun or quantity.known):
        return 4
    return 2 if wanted.may_be_year or _measures(quantity) or not quantity.may_be_year else 3


def _noun(like: NumberValue) -> str:
    """Return the thing that the expected number counts, in one form."""
    return quantity_of(like.amount, like.unit.rpartition(" ")[2]).kind


def _answering(plain: str, mentions: list[NumberMention]) -> list[NumberMention] | None:
    """Return the numbers of the clauses that answer; `None` if the answer hedges."""
    masked = mask(plain, [(mention.start, mention.end) for mention in mentions])
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked):
        return None
    stated = asserted(masked)
    if (equals := plain.rfind("=")) >= 0:
        mentions = [mention for mention in mentions if mention.start > equals] or mentions
    first = next(iter(sentences(masked)), (0, 0))
    alone = [mention for mention in mentions if within((mention.start, mention.end), [first])]
    if len(alone) == 1 and not masked[slice(*first)].replace(MASK, "").strip(" .;!~\"'"):
        # The sentences after a bare number explain it.
        mentions = alone
    return [mention for mention in mentions if within((mention.start, mention.end), stated)]


def _select(mentions: list[NumberMention], like: NumberValue, question: str) -> list[NumberValue]:
    question_amounts = {number.quantity.amount for number in find_numbers(plain_numbers(question))}
    others = [mention for mention in mentions if mention.quantity.amount not in question_amounts]
    chosen = _fitting(others or mentions, like)
    if any(each.vague for each in chosen):
        return []
    return [value for each in chosen if (value := _number_value(each, like)) is not None]


def _number_value(mention: NumberMention, like: NumberValue) -> NumberValue | None:
    """Return a number with its unit; with the expected unit if it states none."""
    quantity = mention.quantity
    if not quantity.known and (not _measures(quantity) or _noun(like) in mention.nouns):
        quantity = quantity_of(quantity.amount)
        wanted = quantity_of(like.amount, like.unit)
        if wanted.kind == "percent" and wanted.size == quantity.amount:
            return NumberValue(quantity.amount * 100, like.unit)
    stated = stated_number(quantity, unit=like.unit)
    return None if stated is None else NumberValue(*stated)


def _with_shared_units(plain: str, mentions: list[NumberMention]) -> list[NumberMention]:
    """Give the first number of "34 to 36 metres" its unit."""
    shared = list(mentions)
    for index in range(len(mentions) - 2, -1, -1):
        first, second = shared[index], shared[index + 1]
        gap = plain[first.end : second.start]
        listed = "," in gap and first.quantity.may_be_year
        if not first.quantity.known and not listed and len(gap) < 12 and _JOINED.fullmatch(gap):
            quantity = quantity_of(first.quantity.amount, second.quantity.unit)
            shared[index] = first._replace(quantity=quantity, nouns=second.nouns)
    return shared


def _measures(quantity: Quantity) -> bool:
    """Return whether a number has a unit or counts something: the word after it is a unit or a plural."""
    unit = quantity.unit
    return quantity.known or (singular(unit) != unit and unit.lower() not in CONNECTING)


def _overlaps(span: Span, others: Sequence[Span]) -> bool:
    index = bisect_right(others, span[0], key=itemgetter(0))
    return any(span[0] < end and start < span[1] for start, end in others[max(0, index - 1) : index + 1])


_LIST_LEAD: Final = re.compile(
    r"(?:\b(?:is|was|are|were|be|includes?|included|comprises?|contains?|named|namely|as follows)\b:?|:)\s*",
    re.IGNORECASE,
)
_SEPARATOR: Final = re.compile(
    r"[,;\n:]|[.!?](?=\s|$)|\band\b|\bthen\b|&|(?<!\S)\(?\d{1,2}[.)](?=\s)|(?<!\S)[-*•](?=\s)"
)
_FURTHER: Final = re.compile(
    r"\s*(?:\(?\d{1,2}[.)]\s|[-*•]\s|(?:also|and|plus|additionally|another|finally|lastly|as well as)\b)",
    re.IGNORECASE,
)
"""Beginning of a sentence or line that continues an enumeration."""
_OPEN: Final = re.compile(
    r"\b(?:etc|(?:and|among|with|plus) (?:many |some |several |two |three )?(?:others|more)|and so (?:on|forth)|such as|for example|for instance"
    r"|e\.g|including|amongst others|at least)\b",
    re.IGNORECASE,
)
"""Words of a list that may have further items."""
_BRACKETS: Final = re.compile(r"\([^()]*\)")
_ARTICLES: Final = re.compile(r"(?:the|a|an|then|first|second|third|finally|lastly)\s+", re.IGNORECASE)


def read_list_answer(
    answer: str,
    like: ListValue,
    question: str,
    read: Callable[[str, ScalarValue, str], ScalarValue | None],
) -> ListValue | None:
    """Return the list that an answer states, with all items, expected or not.

    :param read: reads a single value of an answer, like the expected one, to a question.
    """
    first = next(iter(like.items), None)
    items: Sequence[ScalarValue] | None
    match first:
        case None:
            return None
        case _ if len(like.items) == 1:
            value = read(answer, first, question)
            items = None if value is None else [value]
        case NumberValue() if _alike(like):
            items = read_numbers(answer, first, question, listed=True)
        case DateValue() if _alike(like):
            items = read_dates(answer, first, question)
        case EntityValue() | TextValue():
            items = _read_records(answer, like, question, read)
        case _:
            values = [read(item, first, question) for item in split_list(_without_lead(answer))]
            items = [value for value in values if value is not None]
            items = items if len(items) == len(values) and _alike(like) else None
    return ListValue(tuple(items), like.ordered) if items else None


def _alike(like: ListValue) -> bool:
    return len({type(item) for item in like.items}) == 1


def _read_records(
    answer: str,
    like: ListValue,
    question: str,
    read: Callable[[str, ScalarValue, str], ScalarValue | None],
) -> list[ScalarValue] | None:
    """Return the named items of an enumeration, each with the values that the text states before the next name."""
    records = records_of(like.items)
    expected = {_name(record[0]): record for record in records}
    named = _read_names(answer, list(expected), question)
    if named is None:
        return None
    kind = type(like.items[0])
    items: list[ScalarValue] = []
    for index, (name, span) in enumerate(named):
        end = named[index + 1][1][0] if index + 1 < len(named) else len(answer)
        items.append(TextValue(name) if kind is TextValue else EntityValue(name))
        part = answer if len(named) == 1 else answer[span[1] : end]
        for like_value in expected.get(name, records[0])[1:]:
            value = read(part, like_value, question)
            items.extend([] if value is None else [value])
    return items


def _name(item: ScalarValue) -> str:
    match item:
        case EntityValue(name):
            return name
        case TextValue(text):
            return text
        case _:
            return ""


def _read_names(answer: str, like: Sequence[str], question: str = "") -> list[tuple[str, Span]] | None:
    """Return the names that an enumeration states, in its order, each with its span.

    `None` if the answer hedges or offers alternatives. A name that is not among the expected ones is returned, too.

    :param like: the expected names, which may contain commas and `and`.
    """
    reader = NameReader(answer, question)
    named_spans = _longest(sorted((span, name) for name in dict.fromkeys(like) for span in reader.find(name)))
    masked = mask(answer, [span for span, _ in named_spans])
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked) or _OPEN.search(masked):
        return None
    if not named_spans:
        return [(item, (0, 0)) for item in split_list(_without_lead(answer))]
    stated = asserted(masked)
    parts = sentences(masked)
    start = next(first for first, last in parts if first <= named_spans[0][0][0] < last)
    end = _end(masked, parts, named_spans[-1][0][0])
    proper = any(name[:1].isupper() for name in like)
    leads = [match.end() for match in _LIST_LEAD.finditer(masked, start, named_spans[0][0][0])]
    region = (leads[-1] if leads else start, end)
    others = _other_names(reader, _without_brackets(masked), region, stated, proper=proper, lead=bool(leads))
    named = [(name, span) for span, name in named_spans if within(span, stated)]
    return sorted([*named, *others], key=lambda named_span: named_span[1])


def _without_brackets(text: str) -> str:
    """Replace remarks in brackets by spaces."""
    return _BRACKETS.sub(lambda match: " " * len(match[0]), text)


def _other_names(
    reader: NameReader, masked: str, region: Span, stated: Sequence[Span], *, proper: bool, lead: bool
) -> Iterator[tuple[str, Span]]:
    """Iterate over the items of an enumeration that begin with another name."""
    cuts = [(match.start(), match.end()) for match in _SEPARATOR.finditer(masked, *region)]
    starts, ends = [region[0], *(end for _, end in cuts)], [*(start for start, _ in cuts), region[1]]
    for start, end in zip(starts, ends, strict=True):
        item = masked[start:end]
        word = start + len(item) - len(item.lstrip())
        is_settled = MASK in item or not item.strip() or not within((word, word + 1), stated)
        if not is_settled and reader.opens_with_item(
            (start, end), proper=proper, first=start == region[0] and not lead
        ):
            yield bare_text(_ARTICLES.sub("", item.strip())), (start, end)


def _end(masked: str, parts: Sequence[Span], last: int) -> int:
    """Return the end of an enumeration: that of its last sentence, or of the last one that continues it."""
    rest = [(start, end) for start, end in parts if end > last]
    end = rest[0][1]
    for start, stop in rest[1:]:
        if not _FURTHER.match(masked, start):
            break
        end = stop
    return end


def _longest(named_spans: Sequence[tuple[Span, str]]) -> list[tuple[Span, str]]:
    """Return the spans without those inside of others, and each name once."""
    kept: list[tuple[Span, str]] = []
    names: set[str] = set()
    for span, name in sorted(named_spans, key=lambda named_span: (named_span[0][0], -named_span[0][1])):
        if (not kept or span[0] >= kept[-1][0][1]) and name not in names:
            kept.append((span, name))
            names.add(name)
    return kept


def _without_lead(answer: str) -> str:
    lead = list(_LIST_LEAD.finditer(answer))
    return answer[lead[-1].end() :] if lead else answer


_MARK: Final = re.compile(
    r"\b(?:final answer|answer)\b\W{0,3}(?:(?:is|was)\b:?|:)\s?|(?:^|(?<=[.!?\n] )|(?<=\n))(?:therefore|thus|hence|so)\b,?\s",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"(?:(?:well|yes|ok|okay|sure|indeed)[,.] )?"
    r"(?:(?:it|this|that|he|she|they|these|those)(?:'s| is| was| are| were) )?(?:called |named |known as )?",
    re.IGNORECASE,
)
_TRUE: Final = "yes|true|correct|right|yeah|yep|indeed|certainly|absolutely|definitely|affirmative|of course"
_FALSE: Final = (
    "no|false|incorrect|wrong|nope|never|negative|untrue|not (?:true|correct|right|really|at all|so|the case)"
)
_VERB: Final = "is|was|are|were|does|do|did|has|have|had|can|could|will|would"
_TRUTH: Final = re.compile(
    rf"(?:(?:it|that|this|the (?:statement|claim))(?:'s| is| was) )?(?:(?P<true>{_TRUE})|(?P<false>{_FALSE}))"
    r"(?=\W*$|[.,;:!-]|\s(?:it|he|she|they|this|that|these|those|there|the|we|i|both|neither|because|since|-)(?!\w))",
    re.IGNORECASE,
)
_SHORT_TRUTH: Final = re.compile(
    rf"(?:it|he|she|they|this|that|these|those|there|both|(?P<neither>neither))(?: of them)? (?:{_VERB})(?P<negated>n't| not)?\W*$",
    re.IGNORECASE,
)
_FINAL_TRUTH: Final = re.compile(r"\b(?:so|therefore|thus|hence)\b,? (?P<truth>yes|no)\W*$", re.IGNORECASE)
_OPPOSITE: Final = {
    True: re.compile(r"\bno\b(?=[.,;!]|\W*$)|\bfalse\b", re.IGNORECASE),
    False: re.compile(r"\byes\b|\btrue\b(?=\W*$)", re.IGNORECASE),
}
_OPENING: Final = " \n\"'({[*"
_MAX_WORDS: Final = 12
"""Words of the longest name that is read without knowing it."""


def read_answer(text: str, like: Value, *, question: str = "", surname: bool = False) -> Value | None:
    """Return the value that an answer states; `None` if it states none of that type, hedges, or gives alternatives.

    >>> from decimal import Decimal
    >>> read_answer("It was 34 m tall.", NumberValue(Decimal(30), "metres"))
    NumberValue(amount=Decimal('34'), unit='metres')
    >>> read_answer("No, it was not.", BoolValue(True))
    BoolValue(truth=False)

    :param like: the expected value: it gives the type, the unit, and the name to look for.
    :param question: the question. Its names and numbers are no answers.
    :param surname: the last word of a name is enough. Right only if no other candidate has it.
    """
    answer = _marked(plain_text(text))
    read = partial(_read_scalar, surname=surname)
    if isinstance(like, ListValue):
        return read_list_answer(answer, like, question, read)
    return read(answer, like, question)


def answer_agrees(expected: Value, answer: str, *, question: str = "", surname: bool = False) -> bool:
    """Return whether an answer in prose states the expected value and no other.

    >>> answer_agrees(DateValue(1841, 5, 12), "13 May 1841 in Port Vannick")
    False
    >>> answer_agrees(EntityValue("Guild of Glaziers"), "It was not the Guild of Glaziers.")
    False

    :param question: the question. Its names and numbers are no answers.
    :param surname: the last word of a name is enough. Right only if no other candidate has it.
    """
    read = read_answer(answer, expected, question=question, surname=surname)
    return read is not None and values_agree(expected, read)


def _marked(text: str) -> str:
    """Return the part after the last `answer:`, `the answer is`, or `therefore`."""
    for match in reversed(list(_MARK.finditer(text))):
        if rest := text[match.end() :].strip():
            return rest
    return text


def _read_scalar(answer: str, like: ScalarValue, question: str, *, surname: bool) -> ScalarValue | None:
    match like:
        case BoolValue():
            return None if is_uncertain(answer) else _read_truth(answer)
        case NumberValue():
            return read_number_answer(answer, like, question)
        case DateValue():
            return read_date_answer(answer, like, question)
        case EntityValue(name):
            read = _read_name(answer, name, question, surname=surname)
            return None if read is None else EntityValue(read)
        case TextValue(wanted):
            read = _read_name(answer, wanted, question, surname=False)
            return None if read is None else TextValue(read)


def _read_truth(answer: str) -> BoolValue | None:
    """Return the truth of an answer that begins or ends with yes or no, or consists of "It was not."."""
    first = answer[slice(*next(iter(sentences(answer)), (0, 0)))].lstrip(_OPENING)
    if match := _TRUTH.match(first):
        truth = match["true"] is not None
        rest = answer[match.end() :].strip(" ,.;:!-\n")
        short = _SHORT_TRUTH.match(rest)
        opposite = _OPPOSITE[truth].search(rest)
        contradicts = short and (not (short["negated"] or short["neither"])) is not truth
        return None if opposite or contradicts else BoolValue(truth)
    if short := _SHORT_TRUTH.match(first):
        return BoolValue(not (short["negated"] or short["neither"]))
    final = _FINAL_TRUTH.search(answer)
    return BoolValue(final["truth"].lower() == "yes") if final else None


def _read_name(answer: str, name: str, question: str, *, surname: bool) -> str | None:
    """Return the name if the answer states it, else the name that a short answer consists of."""
    # A question that offers the name as an alternative offers others, too.
    offered = NameReader(question).find(name) if question else []
    reader = NameReader(answer, "" if offered else question)
    name_spans = reader.find(name, surname=surname)
    masked = mask(answer, name_spans)
    if is_uncertain(masked) or is_denied(masked) or has_alternatives(masked):
        return None
    if name_spans:
        return name if reader.is_answer(name_spans, masked) else None
    spans = sentences(answer)
    first = answer[slice(*spans[0])] if spans else ""
    core = bare_text(first[lead.end() if (lead := _LEAD.match(first)) else 0 :])
    negated = not asserted(first)
    return core if core and not negated and core.count(" ") < _MAX_WORDS else None
