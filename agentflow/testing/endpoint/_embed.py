"""Embeddings without weights: texts that share words are close."""

import base64
import math
import re
import struct
from hashlib import blake2b

SIZE = 128
"""Dimension of an embedding."""

_WORD = re.compile(r"\w+")


def embed(text: str, *, as_base64: bool = False) -> list[float] | str:
    """Return the unit-length embedding of a text: each word is hashed to a dimension and a sign."""
    vector = [0.0] * SIZE
    for word in _WORD.findall(text.casefold()):
        dice = blake2b(word.encode(), digest_size=3).digest()
        vector[int.from_bytes(dice[:2], "big") % SIZE] += 1.0 if dice[2] % 2 else -1.0
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    vector = [number / length for number in vector]
    if as_base64:
        return base64.b64encode(struct.pack(f"<{SIZE}f", *vector)).decode()
    return vector
