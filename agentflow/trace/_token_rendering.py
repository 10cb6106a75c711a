"""Rendering of tokens for a terminal and as HTML: text by token, with log-probability, version and advantage."""

import html
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from agentflow._terminal import printable
from agentflow.trace._token_calls import Piece

if TYPE_CHECKING:
    from rich.text import Text

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Converts tokens to text."""

_STYLES: Final = {"trained": "green", "left_out": "yellow", "context": "dim", "other": "blue"}
_UNLIKELY: Final = -3.0
_MAX_CHARACTER_TOKENS: Final = 8
"""Number of tokens that may form one character; more are shown although they end in an incomplete one."""
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 monospace; margin: 2em; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; border-left: 3px solid #ddd; padding-left: 1em; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; padding: 0 1em 0 0; vertical-align: top; }}
.context {{ color: #777; }}
.other {{ color: #06c; }}
.trained {{ background: rgba(0, 160, 60, var(--p)); }}
.worse {{ background: rgba(220, 60, 40, var(--p)); }}
.left_out {{ background: rgba(230, 180, 0, var(--p)); }}
</style>
{body}
</html>
"""


class TokenText(Struct, frozen=True, kw_only=True):
    """Text of one token, of several that form one character, or of a whole piece that nobody trains."""

    piece: Piece
    """Piece that it belongs to."""
    text: str
    """The text; a token without one is shown by its id."""
    ids: tuple[int, ...]
    """The tokens."""
    logprob: float | None = None
    """Sum of their log-probabilities; `None` if they are not trained."""


def token_texts(pieces: Sequence[Piece], decode: Decode) -> Iterator[TokenText]:
    """Yield the text of pieces: sampled pieces token by token, others at once.

    Each token is decoded after the one before it, because many tokenizers drop a space at the beginning of a text. Tokens
    that form one character are joined. See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    before: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    logprob = 0.0
    for index, piece in enumerate(pieces):
        if not piece.is_sampled:
            yield TokenText(piece=piece, text=_text(before, piece.ids, decode), ids=piece.ids)
            before = piece.ids[-_MAX_CHARACTER_TOKENS:]
            continue
        # A call whose weights changed has several pieces, and a character may be in two of them.
        later = pieces[index + 1] if index + 1 < len(pieces) else None
        continues = later is not None and later.is_sampled and later.call == piece.call
        for count, (id, token_logprob) in enumerate(zip(piece.ids, piece.logprobs, strict=True), 1):
            ids, logprob = (*ids, id), logprob + token_logprob
            text = _text(before, ids, decode)
            is_last = count == len(piece.ids) and not continues
            if text.endswith(_BROKEN) and len(ids) < _MAX_CHARACTER_TOKENS and not is_last:
                continue
            yield TokenText(piece=piece, text=text, ids=ids, logprob=logprob)
            before, ids, logprob = ids, (), 0.0


def _text(before: tuple[int, ...], ids: tuple[int, ...], decode: Decode) -> str:
    """Return the text that tokens add to those before them; their ids if there is none."""
    start = decode(before) if before else ""
    whole = decode(before + ids)
    text = whole[len(start) :] if whole.startswith(start) and not start.endswith(_BROKEN) else decode(ids)
    return text or "".join(f"‹{id}›" for id in ids)


def coloured(pieces: Sequence[Piece], decode: Decode) -> "Text":
    """Render pieces for a terminal: trained tokens green (underlined below a log-probability of -3), other voices blue.

    Sampled tokens that are not in the loss are yellow. See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    from rich.text import Text

    text = Text()
    for part in token_texts(pieces, decode):
        style = _STYLES[part.piece.kind]
        unlikely = part.logprob is not None and part.logprob < _UNLIKELY
        text.append(printable(part.text), f"{style} underline" if unlikely else style)
    return text


def as_html(pieces: Sequence[Piece], decode: Decode, *, title: str = "") -> str:
    """Render pieces as a standalone HTML page: trained tokens darker if likelier, with their figures as a tooltip.

    Tokens with a negative advantage are red, other trained ones green. See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    return html_page(f"<pre>{html_spans(pieces, decode)}</pre>", title=title)


def html_page(body: str, *, title: str = "") -> str:
    """Return a standalone page with the styles of `html_spans`; it runs no scripts and loads nothing.

    See docs/tokens.md.

    :param body: HTML.
    """
    return _PAGE.format(title=html.escape(printable(title)), body=body)


def html_spans(pieces: Sequence[Piece], decode: Decode) -> str:
    """Render pieces as HTML elements, for a page of `html_page`. See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    return "".join(_span(part) for part in token_texts(pieces, decode))


def _span(part: TokenText) -> str:
    piece, text = part.piece, html.escape(printable(part.text))
    if part.logprob is None:
        by = f' title="{html.escape(printable(piece.call))}"' if piece.call else ""
        return f'<span class="{piece.kind}"{by}>{text}</span>'
    depth = max(0.1, min(0.6, 0.6 + part.logprob / 10))
    figures = [f"{piece.call}: {part.logprob:.3f}"]
    figures += [f"version {piece.version}"] if piece.version else []
    figures += [f"advantage {piece.advantage:+.3f}"] if piece.advantage is not None else []
    kind = "worse" if piece.kind == "trained" and (piece.advantage or 0.0) < 0 else piece.kind
    title = html.escape(printable(", ".join(figures)))
    return f'<span class="{kind}" style="--p:{depth:.2f}" title="{title}">{text}</span>'
