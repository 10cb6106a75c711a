"""Clauses of an answer: asserted, negated or uncertain ones, told apart by their words.

The functions take a text in which values are masked by `MASK`, so that punctuation and words inside a value
("May 12, 1841", "No Man's Land") are not those of a clause.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final, TypeAlias

Span: TypeAlias = tuple[int, int]
"""First index and the index after the last."""

MASK: Final = "\ue000"
"""Character that stands for each character of a value."""

_MARKDOWN: Final = re.compile(r"\*\*|__|`|\[\d{1,3}\]|(?m:^ {0,3}#{1,6} )|(?m:^> )")
_DASHES: Final = str.maketrans("–—−‒‑“”„«»‘’‚\u00a0\u202f\u2009", '-----"""""\'\'\'   ')
_ABBREVIATION: Final = re.compile(
    r"(?:\b(?:[A-Za-z]|Dr|Mr|Mrs|Ms|St|Mt|Prof|Rev|Gen|Capt|Lt|Col|approx|ca|vs|Jr|Sr|Inc|Ltd|Co|Corp|cf|e\.g|i\.e))\.$",
    re.IGNORECASE,
)
_LIST_MARK: Final = re.compile(r"(?:^|[,;:.)\n\ue000-]\s?)\d{1,2}\.$")
_SENTENCE_END: Final = re.compile(r"(?<!\bno)(?<!\bNo)[.!?…]+[\"')\]]*(?=\s|$)|[.!?…]+(?=$|\s\D)|\n+|;")
_CLAUSE_END: Final = re.compile(
    r",(?!\d)|[:()\[\]]|\s-+\s|--+"
    r"|\s(?=(?:but|however|and\s+(?:not|never)|or\s+rather|rather\s+than|instead\s+of|as\s+opposed\s+to|unlike|other\s+than|except"
    r"|although|though|whereas|while|because)\b)",
    re.IGNORECASE,
)
_NEGATION: Final = re.compile(
    r"\b(?:not|never|no|nor|neither|none|nobody|nothing|nowhere|cannot|without|except|excluding|hardly|scarcely|barely|unlike"
    r"|false|falsely|wrong|wrongly|incorrect|incorrectly|untrue|mistaken|mistakenly|denie[sd]|deny|lacks?|fail(?:s|ed)?"
    r"|rather\s+than|instead\s+of|as\s+opposed\s+to|other\s+than|far\s+from|ruled\s+out|contrary\s+to|anything\s+but)\b|n't\b",
    re.IGNORECASE,
)
_CARRIED: Final = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|without|unlike)|n't)[^\w\ue000]*$", re.IGNORECASE
)
_UNCERTAIN: Final = re.compile(
    r"\b(?:maybe|perhaps|possibl[ey]|probabl[ey]|likely|unlikely|presumably|apparently|supposedly|allegedly|seemingly"
    r"|might|unclear|uncertain|unknown|unsure|undetermined|indeterminate|ambiguous|disputed|debated|insufficient|alternatively|conceivably"
    r"|may\s+(?:be|have|well|or)|could\s+(?:be|have|also)|can\s*not\s+(?:be|say|tell|determine|answer|know)|can't\s+(?:be|say|tell|determine|answer|know)"
    r"|(?:not|isn't|wasn't)\s+(?:\w+\s+)?(?:sure|certain|clear|known|stated|specified|mentioned|given|determined|available|provided|enough)"
    r"|do(?:es)?(?:\s+not|n't)\s+(?:know|say|state|specify|mention)|i\s+(?:think|guess|suppose|believe|assume|suspect)"
    r"|(?:seems?|appears?)\s+(?:to|that|like|as)|(?:sources|accounts|records|documents|reports)\s+(?:differ|disagree|vary|conflict|contradict)"
    r"|no\s+(?:information|answer|evidence|data|idea|mention|record)|one\s+of|depend(?:s|ing)\s+on|not\s+only|best\s+guess|if\s+i\s+had\s+to"
    r"|(?:any|every|no)(?:one|thing|body)\s+but|all\s+but|no,?\s+wait|correction|i\s+mean|on\s+second\s+thoughts?|scratch\s+that|others\s+say|some\s+(?:say|sources)|multiple\s+answers|several\s+answers)\b"
    r"|\bwait\b(?=[,.!:;-])|\b(?:hmm+|n/a)\b|\?\?",
    re.IGNORECASE,
)
_DENIAL: Final = re.compile(
    r"\b(?:that|this|it|which|the\s+(?:former|latter|claim|statement))(?:'s|\s+(?:is|was|would\s+be))\s+(?:\w+\s+)?"
    r"(?:wrong|false|incorrect|untrue|a\s+mistake|an\s+error|not\s+(?:true|right|correct|so|the\s+case|the\s+answer)|what\s+\w+\s+claim)\b",
    re.IGNORECASE,
)
_ALTERNATIVE: Final = re.compile(
    r"\b(?:or|either|respectively\s+or)\b|\bversus\b|\bvs\b|/(?=\s?\ue000)", re.IGNORECASE
)


def plain_text(text: str) -> str:
    """Return a text without emphasis and citation marks, with one form of dashes, quotation marks and spaces."""
    plain = _MARKDOWN.sub("", text.translate(_DASHES))
    return "\n".join(" ".join(line.split()) for line in plain.splitlines() if line.strip())


def mask(text: str, spans: Iterable[Span]) -> str:
    """Return a text of the same length with the spans masked."""
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts.extend((text[done:start], MASK * (end - start)))
        done = end
    return "".join([*parts, text[done:]])


def sentences(masked: str) -> list[Span]:
    """Return the spans of the sentences, with their final mark."""
    ends = [
        match.end()
        for match in _SENTENCE_END.finditer(masked)
        if match[0][0] != "." or not _inside_sentence(masked, match.end())
    ]
    return [
        (start, end) for start, end in pairwise([0, *ends, len(masked)]) if masked[start:end].strip(" \n.;")
    ]


def _inside_sentence(masked: str, end: int) -> bool:
    """Return whether a full stop is that of an abbreviation, or of a mark such as `2.` in an enumeration."""
    start = max(0, end - 8)
    return any(pattern.search(masked, start, end) for pattern in (_ABBREVIATION, _LIST_MARK))


def clauses(masked: str, sentence: Span) -> list[Span]:
    """Return the spans of the clauses of a sentence."""
    cuts = [match.start() for match in _CLAUSE_END.finditer(masked, *sentence)]
    return [(start, end) for start, end in pairwise([sentence[0], *cuts, sentence[1]]) if start < end]


def asserted(masked: str) -> list[Span]:
    """Return the spans of the clauses that state something: no negation, no question."""
    spans: list[Span] = []
    for sentence in sentences(masked):
        if masked[slice(*sentence)].rstrip("\"') ").endswith("?"):
            continue
        carried = False
        for start, end in clauses(masked, sentence):
            clause = masked[start:end]
            if not (carried or _NEGATION.search(clause)):
                spans.append((start, end))
            # "It was not, as some say, Ada": the negation waits for what it negates.
            carried = carried or bool(_CARRIED.search(clause))
    return spans


def within(span: Span, spans: Sequence[Span]) -> bool:
    """Return whether one of the spans, which are in order, contains a span."""
    index = bisect_right(spans, span[0], key=itemgetter(0)) - 1
    return index >= 0 and span[1] <= spans[index][1]


def is_uncertain(masked: str) -> bool:
    """Return whether a text hedges, corrects itself, or says that there is no answer."""
    return bool(_UNCERTAIN.search(masked))


def is_denied(masked: str) -> bool:
    """Return whether a text takes back what it said."""
    return bool(_DENIAL.search(masked))


def has_alternatives(masked: str) -> bool:
    """Return whether a sentence with a masked value offers alternatives."""
    return any(
        MASK in masked[start:end] and _ALTERNATIVE.search(masked, start, end)
        for start, end in sentences(masked)
    )
