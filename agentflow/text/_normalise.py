"""Units, normal forms and words of a text, for comparing it with others, and the search for phrases and quotes in it."""

import re
import string
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import compress, islice, pairwise
from typing import Final, NamedTuple


class Unit(NamedTuple):
    """A unit of measurement."""

    kind: str
    factor: Fraction
    """Size in the base unit of its kind, exactly."""


SCALES: Final[Mapping[str, int]] = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "millions": 10**6,
    "mn": 10**6,
    "billion": 10**9,
    "billions": 10**9,
    "bn": 10**9,
    "trillion": 10**12,
    "trillions": 10**12,
    "dozen": 12,
}
"""Words that multiply the number before them."""

_TABLE: Final = """
percent 0.01 % \\% percent pct percentage
length 1 m metre metres meter meters
length 1000 km kilometre kilometres kilometer kilometers
length 0.01 cm centimetre centimetres centimeter centimeters
length 0.001 mm millimetre millimetres millimeter millimeters
length 1609.344 mi mile miles
length 0.3048 ft foot feet
length 0.0254 inch inches
length 1852 nmi
length 0.9144 yd yard yards
mass 1 kg kilogram kilograms kilogramme kilogrammes kilo kilos
mass 0.001 g gram grams gramme grammes
mass 0.000001 mg milligram milligrams
mass 1000 t ton tons tonne tonnes
mass 0.45359237 lb lbs pound pounds
mass 0.028349523125 oz ounce ounces
time 1 s sec secs second seconds
time 0.001 ms millisecond milliseconds
time 60 min mins minute minutes
time 3600 h hr hrs hour hours
time 86400 day days
time 604800 week weeks
year 1 year years yr yrs
year 1/12 month months
year 10 decade decades
year 100 century centuries
calendar 1 calendardays
volume 1 l litre litres liter liters
volume 0.001 ml millilitre millilitres milliliter milliliters
volume 3.785411784 gallon gallons
area 1 sqm
area 1000000 sqkm
area 2589988.110336 sqmi
area 0.09290304 sqft
volume 1000 cbm
volume 1000000000000 cbkm
area 10000 ha hectare hectares
area 4046.8564224 acre acres
data 1 byte bytes
data 1000 kb kilobyte kilobytes
data 1000000 mb megabyte megabytes
data 1000000000 gb gigabyte gigabytes
data 1000000000000 tb terabyte terabytes
power 1 w watt watts
power 1000 kw kilowatt kilowatts
power 1000000 mw megawatt megawatts
speed 1 m/s mps
speed 5/18 km/h kph kmh
speed 0.44704 mph
celsius 1 °c celsius
fahrenheit 1 °f fahrenheit
kelvin 1 kelvin
angle 1 ° degree degrees
usd 1 usd dollar dollars $
eur 1 eur euro euros €
gbp 1 gbp £
jpy 1 jpy yen ¥
"""
UNITS: Final[Mapping[str, Unit]] = {
    name: Unit(kind, Fraction(factor))
    for kind, factor, *names in map(str.split, _TABLE.strip().splitlines())
    for name in names
}
"""Each way to write a unit."""

_SINGULARS: Final[Mapping[str, str]] = {
    "feet": "foot", "inches": "inch", "centuries": "century", "people": "person", "men": "man", "women": "woman",
    "children": "child",
}  # fmt: skip
_PEOPLE: Final = frozenset({"person", "inhabitant", "resident", "soul"})


def singular(noun: str) -> str:
    """Return a noun in the singular, if its plural is regular or that of a common unit.

    >>> singular("inches"), singular("ships"), singular("glass")
    ('inch', 'ship', 'glass')
    """
    start, space, last = noun.rpartition(" ")
    if (lower := last.lower()) in _SINGULARS:
        last = _SINGULARS[lower]
    elif lower.endswith("ies") and len(last) > 4:
        last = f"{last[:-3]}y"
    elif lower.endswith("s") and not lower.endswith(("ss", "us", "is")) and len(last) > 2:
        last = last[:-1]
    return start + space + last


def kind_of_unit(unit: str) -> Unit | None:
    """Return a unit of the table. Case matters only where it distinguishes units, as in MB and Mb."""
    return UNITS.get(unit) or UNITS.get(unit.lower())


def counted(noun: str) -> str:
    """Return one form of a noun that numbers count: `inhabitants` and `people` are the same."""
    single = singular(noun.lower())
    return "person" if single in _PEOPLE else single


UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana, Han
)
"""Character ranges of scripts without spaces between words."""
HANGUL: Final = "\uac00-\ud7af"
"""Character range of Korean: words have spaces between them, but endings are attached to them."""
ANY_UNSPACED: Final = re.compile(f"[{UNSPACED}{HANGUL}]")
"""Matches a character that may be a word, or the end of one, next to a letter."""
MARKS: Final = str.maketrans("‘’‚“”„«»‐‑‒–—−", '\'\'\'"""""------')
"""Maps quotation marks and dashes to their ASCII forms."""

_COMMAS: Final = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))")
_THIN_SPACES: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u2009\u202f\u00a0]\d{3})+(?!\d)")
_UNIT_NAMES: Final = "|".join(sorted((name for name in UNITS if name.isalpha()), key=len, reverse=True))
_GLUED_UNIT: Final = re.compile(rf"(?<![^\W\d])(\d)(?=(?:{_UNIT_NAMES})\b)")
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_RUNS: Final = re.compile(r"\s+|[!-~\x00-\x08\x0e-\x1b\x7f]+|[^\s\x00-\x7f]+")
"""Matches a run of spaces, of other ASCII characters, or of the rest."""
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return a text with one form of Unicode, case, quotation marks, dashes, spaces and numbers.

    >>> normalise("The “Gull”  made 1,500km")
    'the "gull" made 1500 km'
    """
    folded = unicodedata.normalize("NFKC", join_digit_groups(text)).casefold().translate(MARKS)
    folded = folded.replace("per cent", "percent")
    return _GLUED_UNIT.sub(r"\1 ", " ".join(folded.split()))


def normalise_squad(text: str) -> str:
    """Return a text as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    >>> normalise_squad("The Gull!")
    'gull'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def join_digit_groups(text: str) -> str:
    """Remove separators between groups of three digits: `1,500` and `1 500` (narrow space) become `1500`."""
    if not text.isascii():
        text = _THIN_SPACES.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    return _COMMAS.sub("", text)


def contains_phrase(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase as whole words: 5 is not in 50, 5.2 or 1,500, nor "no" in "note".

    >>> contains_phrase("It is 1,500 km away", "1500km")
    True
    """
    needle = normalise(phrase).strip(" .,;:!?\"'。，！？")
    return _find(normalise(text), needle) >= 0


def find_quote(text: str, quote: str) -> tuple[int, int] | None:
    """Return the span of a quote in a text, ignoring differences in spaces, quotation marks, dashes and Unicode forms.

    >>> find_quote("She said  “yes”.", 'said "yes"')
    (4, 15)
    """
    exact = quote.strip()
    start = _find(text, exact)
    if start >= 0:
        return start, start + len(exact)
    haystack, origins = _reduced(text)
    needle = _reduced(quote)[0].strip()
    start = _find(haystack, needle)
    return None if start < 0 else (origins[start], origins[start + len(needle) - 1] + 1)


@lru_cache(maxsize=4)  # Quotes are mostly looked up in one text, one after the other.
def _reduced(text: str) -> tuple[str, list[int]]:
    """Return the text with single spaces and decomposed characters, and each character's original index."""
    parts: list[str] = []
    origins: list[int] = []
    for run in _RUNS.finditer(text):
        start, end = run.span()
        if run[0].isspace():
            # A model reads "<|end|>" as "< |end|>", see `escape_special_tokens`, and quotes it so.
            if parts and parts[-1][-1] not in " <[]":
                parts.append(" ")
                origins.append(start)
        elif run[0].isascii():
            parts.append(run[0])
            origins.extend(range(start, end))
        else:
            for index in range(start, end):
                simple = unicodedata.normalize("NFKD", text[index]).translate(MARKS)
                parts.append(simple)
                origins.extend([index] * len(simple))
    return "".join(parts), origins


def _find(text: str, words: str) -> int:
    """Return the first index where the phrase begins and ends at word boundaries, or -1."""
    start = text.find(words) if words else -1
    while start >= 0:
        end = start + len(words)
        if not (_joined(text, start - 1, start) or _joined(text, end - 1, end)):
            return start
        start = text.find(words, start + 1)
    return -1


def _joined(text: str, left: int, right: int) -> bool:
    """Return whether the characters at these indexes belong to one word or number."""
    if left < 0 or right >= len(text):
        return False
    before, after = text[left], text[right]
    # An accent belongs to what stands before it.
    if unicodedata.combining(after) or (_is_word(before) and _is_word(after)):
        return True
    if before.isdigit() and after in ".," and right + 1 < len(text) and text[right + 1].isdigit():
        return True
    if after.isdigit() and before in ".," and left > 0 and text[left - 1].isdigit():
        return True
    return after.isdigit() and before == "-" and (left == 0 or text[left - 1] in " (=:")


def _is_word(character: str) -> bool:
    return (character.isalnum() or character == "_") and not ANY_UNSPACED.match(character)


SHINGLE_LENGTH: Final = 5
"""Number of consecutive words in a shingle."""

_CACHED: Final = 1024
"""Number of texts whose words are cached: each step that grows from a path asks for that path's texts again."""
_LONG: Final = 6
"""Number of letters of a word that carries meaning by itself."""
_WHOLE_TOKEN: Final = re.compile(rf"\d+(?:[.,]\d+)*|[{UNSPACED}{HANGUL}]|[^\W\d_{UNSPACED}{HANGUL}]+")
_TOKEN: Final = re.compile(rf"[{UNSPACED}{HANGUL}]|[^\W{UNSPACED}{HANGUL}]+")

_ASCII = {code: chr(code).lower() if chr(code).isalnum() or chr(code) == "_" else " " for code in range(128)}

_HAS_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(r"\w+")
_RUN = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")

_FILLERS = """
a about above after again all also although always among an and another any are around as at be became
because been before being below between both but by can could did do does done down during each either end
even every few first for found from further get give given had has have he her here hers him his how however
i if in into is it its itself just known last later least less like long made make many may me might more
most much must my near never new next no nor not now of off often on once one only or other our out over own
part place same say see several she should since so some still such than that the their them then there
these they this those though three through time to today together too two under until up upon us use used
very was way we well were what when where whether which while who whom whose why will with within without
work would year years yet you your der die das und ist ein eine von zu im mit le la les un une et est de du
des en el los las y que por
"""
_STOP_WORDS = frozenset(_FILLERS.split())
"""Stop words of a few languages. Short on purpose: a longer list hides words that matter."""


@lru_cache(maxsize=_CACHED // 16)
def words(text: str) -> tuple[str, ...]:
    """Return the words in order, in one case and Unicode form; scripts without spaces give pairs of characters."""
    return split_words(text)


def split_words(text: str) -> tuple[str, ...]:
    """Return `words`, without its cache: for pieces that are looked at once."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    if plain.isascii():
        return tuple(plain.translate(_ASCII).split())
    if _HAS_UNSPACED.search(plain) is None:
        return tuple(_WORD.findall(plain))
    split: list[str] = []
    for run in _RUN.findall(plain):
        if _HAS_UNSPACED.match(run) is None or len(run) == 1:
            split.append(run)
        else:
            split.extend(first + second for first, second in pairwise(run))
    return tuple(split)


@lru_cache(maxsize=_CACHED)
def word_set(text: str) -> frozenset[str]:
    """Return the distinct words of a text."""
    return frozenset(words(text))


@lru_cache(maxsize=_CACHED)
def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Return all runs of `SHINGLE_LENGTH` words."""
    all_words = words(text)
    return frozenset(zip(*(islice(all_words, start, None) for start in range(SHINGLE_LENGTH)), strict=False))


def is_content_word(word: str) -> bool:
    """Return whether a word can indicate a topic: not a stop word, not a number, not very short.

    >>> is_content_word("lighthouse"), is_content_word("the")
    (True, False)
    """
    return (len(word) > 2 or not word.isascii()) and word not in _STOP_WORDS and not word.isnumeric()


def count_words(terms: frozenset[str]) -> float:
    """Count words; of a script without spaces, two pairs of characters count as one word.

    >>> count_words(frozenset({"two", "words"}))
    2
    """
    return sum(0.5 if _HAS_UNSPACED.match(word) else 1 for word in terms)


def add_plurals(terms: frozenset[str]) -> frozenset[str]:
    """Return the words with their regular English plurals and singulars.

    >>> sorted(add_plurals(frozenset({"ship"})))
    ['ship', 'ships']
    """
    plurals = {word + "s" for word in terms}
    return terms.union(plurals, (word.removesuffix("s") for word in terms if len(word) > 3))


def tokens(text: str) -> list[str]:
    """Return the words of the normalised text; each character of a script without spaces is a word.

    >>> tokens("The Gull sails")
    ['the', 'gull', 'sails']
    """
    return _TOKEN.findall(normalise(text))


def whole_tokens(text: str) -> list[str]:
    """Return words and whole numbers, so that 5 is not found in 5.2: `5.2 km` gives `5.2` and `km`.

    >>> whole_tokens("5.2 km")
    ['5.2', 'km']
    """
    return _WHOLE_TOKEN.findall(unicodedata.normalize("NFKC", join_digit_groups(text)).casefold())


def word_count(text: str) -> float:
    """Return a text's length in words; two characters of a script without spaces count as one word.

    >>> word_count("The Gull sails")
    3.0
    """
    all_tokens = tokens(text)
    return len(all_tokens) - sum(1 for word in all_tokens if ANY_UNSPACED.match(word)) / 2


def content_word_pairs(text: str) -> frozenset[tuple[str, str]]:
    """Return each long word with the word that follows it: a set for comparing what two texts say.

    A text without long words, or in a script without spaces, gives all pairs of words.

    >>> sorted(content_word_pairs("the lighthouse keeper"))
    [('lighthouse', 'keeper')]
    """
    # A tree has thousands of words, and splitting at spaces is by far the quickest way to find them.
    spaced = text.isascii() or not ANY_UNSPACED.search(text)
    split = unicodedata.normalize("NFKC", text).casefold().split() if spaced else tokens(text)
    long = map(_LONG.__le__, map(len, split))
    informative = frozenset(compress(pairwise(split), long)) if spaced else frozenset(pairwise(split))
    return informative or frozenset(pairwise(split)) or frozenset((word, "") for word in split)
