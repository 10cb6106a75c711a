"""Text utilities that several packages share: normalisation, words, quantities, quotes, windows, reasoning,
prompt files.

Numbers are compared by one implementation, so that scoring and grounding can't disagree about one::

    from agentflow.text import quantity, same_quantity

    distance, same_distance = quantity("5 km"), quantity("5,000 metres")
    assert distance and same_distance and same_quantity(distance, same_distance)
"""

from agentflow.text._normalise import (
    SHINGLE_LENGTH,
    add_plurals,
    contains_phrase,
    content_word_pairs,
    count_words,
    find_quote,
    is_content_word,
    normalise,
    normalise_squad,
    shingles,
    singular,
    tokens,
    whole_tokens,
    word_count,
    word_set,
    words,
)
from agentflow.text._prompts import (
    PromptFiles,
    SplitReply,
    escape_all_special_tokens,
    escape_special_tokens,
    instructs,
    split_reasoning,
    without_reasoning,
)
from agentflow.text._quantities import (
    Quantity,
    find_quantities,
    plain_quantities,
    quantities,
    quantity,
    quantity_of,
    same_quantity,
    scale_of,
)
from agentflow.text._windows import (
    TextWindow,
    excerpt,
    find_windows,
    name_terms,
    placed_windows,
    search_terms,
    show_windows,
)

__all__ = [
    "SHINGLE_LENGTH",
    "PromptFiles",
    "Quantity",
    "SplitReply",
    "TextWindow",
    "add_plurals",
    "contains_phrase",
    "content_word_pairs",
    "count_words",
    "escape_all_special_tokens",
    "escape_special_tokens",
    "excerpt",
    "find_quantities",
    "find_quote",
    "find_windows",
    "instructs",
    "is_content_word",
    "name_terms",
    "normalise",
    "normalise_squad",
    "placed_windows",
    "plain_quantities",
    "quantities",
    "quantity",
    "quantity_of",
    "same_quantity",
    "scale_of",
    "search_terms",
    "shingles",
    "show_windows",
    "singular",
    "split_reasoning",
    "tokens",
    "whole_tokens",
    "without_reasoning",
    "word_count",
    "word_set",
    "words",
]
