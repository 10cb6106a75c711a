"""Names: their normal form, and the names that an answer gives."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Final, NamedTuple

from agentflow.values._clauses import Span, asserted, sentences, within
from agentflow.values._numbers import MONTHS

_LETTERS: Final = str.maketrans({
    "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ß": "ss", "æ": "ae", "œ": "oe", "ı": "i",
    "'": "", "’": "", "‘": "", "`": "", "´": "",
})  # fmt: skip
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
"""Accents of Latin, Greek and Cyrillic letters; marks of other scripts make another letter."""
_WORD: Final = re.compile(r"[^\W_]+(?:['’‘`´][^\W_]+)*[+#]*|&")
_TITLES: Final = frozenset(
    ["mr", "mrs", "ms", "miss", "dr", "prof", "professor", "sir", "dame", "rev", "reverend", "hon"]
)
_RANKS: Final = frozenset([
    "captain", "lord", "lady", "president", "general", "admiral", "colonel", "governor", "mayor", "keeper", "engineer",
])  # fmt: skip
"""Ranks before a full name, which need not belong to it."""
_ARTICLES: Final = frozenset({"a", "an", "the"})
_FUNCTION_WORDS: Final = frozenset(["a", "about", "according", "across", "after", "against", "all", "along", "although", "am", "among", "an", "and", "answer", "any", "are", "around", "as", "at", "be", "because", "been", "before", "being", "below", "beneath", "between", "both", "but", "by", "called", "can", "could", "did", "do", "does", "during", "each", "else", "for", "from", "had", "has", "have", "he", "hence", "her", "here", "hers", "him", "his", "how", "i", "if", "in", "indeed", "instead", "into", "is", "it", "its", "just", "known", "like", "made", "maker", "namely", "named", "near", "no", "not", "now", "of", "off", "on", "once", "only", "onto", "or", "other", "our", "out", "over", "part", "per", "she", "should", "since", "so", "still", "such", "than", "that", "the", "their", "them", "then", "there", "therefore", "these", "they", "this", "those", "though", "through", "thus", "till", "to", "today", "together", "toward", "towards", "under", "until", "up", "upon", "upto", "us", "very", "via", "was", "we", "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "within", "would", "yes", "yet", "you"])  # fmt: skip
_VERBS: Final = frozenset(["am", "are", "be", "became", "become", "becomes", "been", "began", "came", "could", "did", "do", "does", "drew", "fell", "found", "gave", "get", "gets", "got", "grew", "had", "has", "have", "held", "is", "keep", "keeps", "kept", "leads", "led", "left", "lit", "lost", "made", "make", "makes", "may", "must", "owned", "owns", "ran", "rose", "saw", "sold", "spent", "stands", "stood", "took", "was", "were", "went", "will", "won", "would", "wrote", "built"])  # fmt: skip
_EXTENDING: Final = frozenset(["north", "south", "east", "west", "northern", "southern", "eastern", "western", "northeast", "northwest", "southeast", "southwest", "upper", "lower", "new", "old", "anti", "non", "inner", "outer", "central", "greater", "former", "ex", "late", "pre", "post"])  # fmt: skip
"""Words that make another name of the name after them."""
CONNECTING: Final = _FUNCTION_WORDS | _VERBS
"""Words that are no part of a name, and count nothing."""
_CONJUNCTIONS: Final = frozenset({"and", "or", "nor", "plus"})
_ADDING: Final = frozenset(
    {
        "with",
        "plus",
        "besides",
        "alongside",
        "along",
        "together",
        "as",
        "well",
        "also",
        "addition",
        "in",
        "to",
    }
)
_JOINING: Final = re.compile(r"[/|+&\\→~<>=]")
_LOCATIVE: Final = frozenset({"in", "at", "from", "near", "on", "to"})
_PLACE: Final = re.compile(
    r"\bwhere\b|\b(?:in|at|from|near|on|to) (?:which|what)\b"
    r"|\b(?:which|what) (?:\w+ )?(?:bay|town|city|village|port|harbour|island|country|region|place|county|state|parish|district|birthplace)\b",
    re.IGNORECASE,
)
_LISTING: Final = _ARTICLES | _CONJUNCTIONS | {"then", "first", "second", "third", "finally", "lastly"}
_COPULAS: Final = frozenset(
    {"is", "was", "are", "were", "be", "been", "being", "called", "named", "namely", "became", "its"}
)
_SUBJECTS: Final = frozenset({"they", "he", "she", "it", "we", "you", "i", "who", "which", "that"})
_COMMON: Final = (
    CONNECTING
    | _TITLES
    | _RANKS
    | frozenset(name.lower()[:length] for name in MONTHS for length in (3, len(name)))
)
"""Words that have a capital without being part of a name."""
_ADJACENT: Final = frozenset({" ", "-", ""})


_MAX_INITIALS: Final = 16


class NameWord(NamedTuple):
    """Word of a text, in the form in which names are compared."""

    form: str
    start: int
    end: int
    capital: bool


@lru_cache(maxsize=8192)
def normalise_name(name: str) -> str:
    """Return a name in one case, without accents, leading article, title, and punctuation.

    >>> normalise_name("Dr. Zoë M. Ørn") == normalise_name("zoe m orn")
    True
    """
    return " ".join(word.form for word in _significant(name, name_words(name))) or name.strip().casefold()


def name_words(text: str) -> list[NameWord]:
    """Return the words of a text; single letters in a row are one word: `J. R. R. Tolkien` is `JRR Tolkien`."""
    merged: list[NameWord] = []
    ascii_only = text.isascii()
    for match in _WORD.finditer(text):
        written = match[0]
        form = _fold(written, ascii_only=ascii_only)
        start, end = match.span()
        last = merged[-1] if merged else None
        if last and len(written) == 1 and written.isalpha() and _joins(text, last, start, end):
            merged[-1] = NameWord(last.form + form, last.start, end, capital=last.capital)
        else:
            merged.append(NameWord(form, start, end, written[0].isupper() or written[0].isdigit()))
    return [
        word._replace(form="saint") if word.form == "st" and following and following.capital else word
        for word, following in zip_longest(merged, merged[1:])
    ]


def _fold(word: str, *, ascii_only: bool) -> str:
    plain = word if ascii_only else _ACCENTS.sub("", unicodedata.normalize("NFKD", word))
    return "and" if plain == "&" else plain.casefold().translate(_LETTERS)


def _joins(text: str, last: NameWord, start: int, end: int) -> bool:
    """Return whether an initial follows others: single letters that are capitals or have a full stop."""
    before = text[last.start : last.end]
    letters = before.replace(".", "").replace(" ", "")
    if len(before) > _MAX_INITIALS:
        return False
    single = len(before) == 1 or len(letters) < len(before)
    dotted = text[last.end : last.end + 1] == "." and text[end : end + 1] == "."
    capitals = letters.isupper() and text[start:end].isupper()
    gap = text[last.end : start]
    return single and letters.isalpha() and (dotted or capitals) and gap in {".", ". ", " "}


def _significant(text: str, words: list[NameWord]) -> list[NameWord]:
    start = 0
    # The A of "A. Holm" is an initial.
    while len(words) - start > 1 and words[start].form in _ARTICLES and text[words[start].end] == " ":
        start += 1
    # A title before a surname alone belongs to the name: Dr Holm need not be Ada Holm.
    while len(words) - start > 2 and words[start].form in _TITLES:
        start += 1
    return words[start:]


class NameReader:
    """Finds a name in an answer and decides whether it is the answer.

    Without knowledge of names only their surroundings tell: a word with a capital next to a name belongs to it, and
    another name in the same sentence may be the answer instead, unless the question has it.
    """

    def __init__(self, text: str, question: str = "") -> None:
        """:param question: its names are no other answers."""
        self.text = text
        self.words = name_words(text)
        self._starts = [word.start for word in self.words]
        self._asks_place = bool(_PLACE.search(question))
        self._question_forms = frozenset(word.form for word in name_words(question))
        self._cased = any(word.capital and word.form.isalpha() for word in self.words)

    def find(self, name: str, *, surname: bool = False) -> list[Span]:
        """Return the spans of a name in the text, where no word next to it belongs to it.

        :param surname: its last word is enough, with initials or a title.
        """
        written = name_words(name)
        proper = any(word.capital for word in written)
        wanted = [word.form for word in _significant(name, written)]
        spans = list(self._find(wanted, proper=proper, initials=""))
        if not spans and surname and len(wanted) > 1:
            initials = "".join(form[0] for form in wanted[:-1])
            spans = list(self._find(wanted[-1:], proper=proper, initials=initials))
        return spans

    def is_answer(self, spans: Sequence[Span], masked: str) -> bool:
        """Return whether a name that was found is the answer, and no other one.

        :param masked: the text with the name masked.
        """
        stated = asserted(masked)
        names = [span for span in spans if within(span, stated)]
        if not names or any(self._is_coordinated(span) for span in spans):
            return False
        first = next(sentence for sentence in sentences(masked) if within(names[0], [sentence]))
        earlier = [span for span in stated if span[1] <= first[0]]
        here = [span for span in stated if within(span, [first])]
        later = (span for span in sentences(masked) if span[0] >= first[1])
        if any(self._rivals(span, spans) for span in earlier) or any(map(self._is_other_name, later)):
            return False
        for name in names:
            clause = next((span for span in here if within(name, [span])), None)
            if clause and self._is_prominent(name[0], clause):
                others = [span for span in here if span != clause]
                return not any(map(self._opens_with_rival, others)) and not any(
                    self._states_rival(span, spans) for span in here
                )
            if clause and self._is_place(name, clause, here, spans):
                return True
        return not any(self._rivals(span, spans) for span in here)

    def opens_with_item(self, span: Span, *, proper: bool, first: bool) -> bool:
        """Return whether the words of a span are an item of a list: a name, or a noun if the items are no names.

        :param first: the span begins a sentence, where any word has a capital.
        """
        indices = (index for index in self._word_indices(span) if self.words[index].form not in _LISTING)
        index = next(indices, None)
        if index is None:
            return False
        if proper and self._cased:
            return self._starts_rival(index) if first else self._is_rival(index)
        return self.words[index].form not in CONNECTING | self._question_forms

    def _find(self, wanted: Sequence[str], *, proper: bool, initials: str) -> Iterator[Span]:
        count = len(wanted)
        forms = [word.form for word in self.words]
        for first in range(len(forms) - count + 1 if wanted else 0):
            if forms[first] == wanted[0] and forms[first : first + count] == wanted:
                last = first + count - 1
                if self._ends_left(first, count, proper=proper, initials=initials) and self._ends_right(
                    first, last, proper=proper
                ):
                    yield self.words[first].start, self.words[last].end

    def _ends_left(self, first: int, count: int, *, proper: bool, initials: str) -> bool:
        """Return whether the word before a name does not belong to it."""
        gap = self._gap(first - 1)
        if gap not in _ADJACENT:
            return True
        before = self.words[first - 1]
        if before.form in _RANKS and (initials or count > 1):
            return True
        if initials and (before.form in _TITLES or initials.startswith(before.form)):
            return True
        if gap == "-" or before.form in _EXTENDING:
            return False
        if before.form in _TITLES:
            return count > 1
        if proper and self._cased:
            return before.form in CONNECTING or not before.capital
        # "They mined copper", and not "refined copper".
        mined = before.form.endswith("ed") and first > 1 and self.words[first - 2].form in _SUBJECTS
        return before.form in CONNECTING or mined

    def _ends_right(self, first: int, last: int, *, proper: bool) -> bool:
        """Return whether the word after a name does not belong to it."""
        gap = self._gap(last)
        if gap not in _ADJACENT:
            return True
        after = self.words[last + 1]
        if gap == "-" or (after.form in {"of", "the"} and proper and self._is_rival(last + 2)):
            return False
        if after.form in CONNECTING or after.form.endswith("ed"):
            return True
        # A verb in the present, if the name opens the clause: "Norway exports most".
        opens = self._gap(first - 1) not in _ADJACENT or self.words[first - 1].form in _ARTICLES
        return opens and not after.capital and after.form.endswith("s")

    def _gap(self, index: int) -> str | None:
        """Return the text between a word and the next one; `None` at an end."""
        if not 0 <= index < len(self.words) - 1:
            return None
        return self.text[self.words[index].end : self.words[index + 1].start]

    def _is_rival(self, index: int) -> bool:
        """Return whether a word is part of a name that the question does not have."""
        if index >= len(self.words):
            return False
        word = self.words[index]
        return word.capital and not word.form[0].isdigit() and word.form not in _COMMON | self._question_forms

    def _starts_rival(self, index: int) -> bool:
        """Return whether a name begins with a word. A single capital that begins a sentence is none."""
        if not self._is_rival(index):
            return False
        opens = not index or any(mark in (self._gap(index - 1) or "") for mark in ".!?\n;:")
        return not opens or self._gap(index) not in {" ", "-"} or self._is_rival(index + 1)

    def _word_indices(self, span: Span) -> range:
        """Return the indices of the words in a span."""
        return range(bisect_left(self._starts, span[0]), bisect_left(self._starts, span[1]))

    def _rivals(self, span: Span, spans: Sequence[Span]) -> bool:
        """Return whether a clause has another name."""
        return any(
            self._starts_rival(index) and not within((self.words[index].start, self.words[index].end), spans)
            for index in self._word_indices(span)
        )

    def _is_other_name(self, span: Span) -> bool:
        """Return whether a sentence consists of another name."""
        indices = self._word_indices(span)
        return bool(indices) and all(map(self._is_rival, indices))

    def _opens_with_rival(self, span: Span) -> bool:
        """Return whether a clause begins with another name."""
        words = (
            index
            for index in self._word_indices(span)
            if self.words[index].form not in _ARTICLES | _CONJUNCTIONS
        )
        index = next(words, None)
        return index is not None and self._starts_rival(index)

    def _states_rival(self, span: Span, spans: Sequence[Span]) -> bool:
        """Return whether another name follows `is`, `was` and alike in a clause: "the first was Ada"."""
        indices = self._word_indices(span)
        return any(
            self._is_rival(index)
            and self.words[index - 1].form in _COPULAS
            and not within((self.words[index].start, self.words[index].end), spans)
            for index in indices[1:]
        )

    def _is_prominent(self, start: int, clause: Span) -> bool:
        """Return whether a name is the subject of its clause, or follows `is`, `was`, `called` and alike."""
        before = [self.words[index].form for index in self._word_indices((clause[0], start))]
        while before and before[-1] in _ARTICLES | _TITLES | _RANKS:
            before.pop()
        return not before or before[-1] in _COPULAS

    def _is_place(self, name: Span, clause: Span, here: Sequence[Span], spans: Sequence[Span]) -> bool:
        """Return whether a name is the place at the end of an answer to a question for one: "Ada was born in Brenn."."""
        indices = self._word_indices((clause[0], name[0]))
        if not self._asks_place or not indices or self.words[indices[-1]].form not in _LOCATIVE:
            return False
        others = [
            index
            for span in here
            for index in self._word_indices(span)
            if self.words[index].form in _LOCATIVE
        ]
        last = self._word_indices((clause[0], clause[1]))[-1]
        ends_clause = self.words[last].end <= name[1]
        return ends_clause and not any(
            self._is_rival(index + 1)
            and not within((self.words[index + 1].start, self.words[index + 1].end), spans)
            for index in others
        )

    def _is_coordinated(self, name: Span) -> bool:
        """Return whether a name is one of several: `Ada and Jorun`, `Ada/Jorun`, `Ada as well as Jorun`."""
        indices = self._word_indices(name)
        left, right = indices[0] - 1, indices[-1] + 1
        before, after = self._gap(left), self._gap(right - 1)
        if _JOINING.search(f"{before or ''}\n{after or ''}"):
            return True
        if left > 0 and before == " " and self.words[left].form in _CONJUNCTIONS:
            other = self.words[left - 1]
            if self._is_rival(left - 1) or not (self._cased or other.form in CONNECTING):
                return True
        return after is not None and self._joins_another(right, comma="," in after)

    def _joins_another(self, index: int, *, comma: bool) -> bool:
        """Return whether the words after a name add another one."""
        joins = self.words[index].form in _CONJUNCTIONS
        if joins and not comma:
            # "Ada and the crew", but not "Ada and was".
            following = self.words[index + 1 : index + 2]
            return bool(following) and following[0].form not in _VERBS
        if not (joins or comma or self.words[index].form in _ADDING):
            return False
        return any(
            self._starts_rival(later)
            for later in range(index, min(index + 5, len(self.words)))
            if all(word.form in _LISTING | _ADDING for word in self.words[index:later])
        )
