import re

from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.facts._mentions import name_spans

_PARTS = [
    "Ada",
    "ada",
    "ADA",
    "Holm",
    "Low",
    "Maddon",
    "x",
    "9",
    " ",
    "  ",
    "-",
    "’s",
    ". ",
    "_",
    "é",
    "ſ",
    "İ",
    "K",
    "港",
]
_TEXTS = st.lists(st.sampled_from(_PARTS), max_size=12).map("".join)
_NAMES = st.sampled_from(
    ["Ada", "Ada Holm", "Low Maddon", "ada-holm", "K 9", "Adé", "x_9", "x.", "…", "港", "As", "ask"]
)


@settings(max_examples=400)
@given(_TEXTS, _NAMES)
def test_names_are_found_in_texts_as_a_pattern_finds_them(text: str, name: str) -> None:
    words = re.findall(r"\w+", name)
    body = r"[\W_]{1,3}".join(map(re.escape, words))
    whole = body if "港" in name else rf"(?<!\w){body}(?!\w)"
    pattern = re.compile(whole, 0 if len(words) == 1 else re.IGNORECASE)

    expected = [found.span() for found in pattern.finditer(text)] if words else []

    assert name_spans(text, [name]) == expected
