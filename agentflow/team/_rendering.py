"""Pieces from which messages are made. Long observations are shown as windows around what matters."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentflow.models import ImagePart, Message, Model, TextPart
from agentflow.text import PromptFiles, excerpt, name_terms, search_terms
from agentflow.trace import Action, Blob, BlobStore, Failure, Memory, NextStep, Node, Reply, ToolCard, Turn

Images = Mapping[str, bytes]
"""Bytes of the images that the model can see, by hash."""

_PROMPTS = PromptFiles(Path(__file__).parent / "prompts")
prompt = _PROMPTS.fill
_JSON = msgspec.json.Encoder()
_MARK = re.compile(
    r"<(?=/?(?:observation|question|seed|claim|document|tables|environment|solution|result|instruction)\b)",
    re.IGNORECASE,
)


def prompt_versions() -> Mapping[str, str]:
    """Return the version of each prompt. Answers to different versions are not comparable.

    Example::

        assert prompt_versions()["planner_next_step"] == "v3"
    """
    return _PROMPTS.versions


def cut(text: str, limit: int) -> str:
    """Cut a long text in the middle, and state how much was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def escape_marks(text: str) -> str:
    """Escape tags that would end the text's own block."""
    return _MARK.sub("< ", text) if "<" in text else text


def observation_block(
    number: int, text: str, blobs: tuple[Blob, ...], images: Images, places: Sequence[str] = ()
) -> str:
    """Return an observation between its tags, and the place of its images; those that the model cannot see are counted.

    :param places: hashes of all images of the message, in order; without them, those of the observation follow it.
    """
    text = escape_marks(text)
    unseen = sum(blob.hash not in images for blob in blobs)
    if unseen:
        text = f"{text}\n({unseen} image{'s' if unseen > 1 else ''} that cannot be shown here)".strip()
    label = image_label(f"observation {number}", [blob.hash for blob in blobs if blob.hash in images], places)
    return f'<observation number="{number}">\n{text}\n</observation>{label}'


def image_label(owner: str, hashes: Sequence[str], places: Sequence[str] = ()) -> str:
    """Return a line with the place of images; empty without any.

    :param owner: thing that the images belong to.
    :param places: hashes of all images of the message, in order; without them, the images follow.
    """
    unique = dict.fromkeys(hashes)
    if not unique:
        return ""
    noun = "Image" if len(unique) == 1 else "Images"
    if not places:
        return f"\n({noun} of {owner}:)"
    numbers = ", ".join(str(places.index(hash) + 1) for hash in unique)
    return f"\n({noun} of {owner}: {numbers} of the images below)"


def episode_images(images: Iterable[Blob], turns: Iterable[Turn]) -> tuple[Blob, ...]:
    """Return the images of a task and of its turns."""
    return (*images, *(blob for turn in turns for blob in turn.images))


def image_parts(blobs: Iterable[Blob], images: Images) -> list[ImagePart]:
    """Return each visible image once."""
    seen = {blob.hash: blob for blob in blobs if blob.hash in images}
    return [ImagePart(images[hash], blob.mime) for hash, blob in seen.items()]


def describe_tools(tools: Iterable[ToolCard]) -> str:
    """Describe tools with their arguments and notes."""
    return _describe_tools(msgspec.json.encode(tuple(tools)))


@lru_cache(maxsize=64)
def _describe_tools(tools: bytes) -> str:
    """Describe encoded tools. Cached by content: a run uses the same few sets of tools throughout."""
    return "\n\n".join(map(_describe_tool, msgspec.json.decode(tools, type=tuple[ToolCard, ...])))


def _describe_tool(card: ToolCard) -> str:
    text = f"## {card.name}\n\n{card.description}\n\nArguments: {json_text(card.schema)}"
    return f"{text}{card_notes(card)}"


def card_notes(card: ToolCard) -> str:
    """Describe a tool's limits, recommended use and examples; empty if it declares none."""
    examples = tuple(map(json_text, card.examples))
    notes = (("Limits", card.limits), ("Best", card.practices), ("Examples", examples))
    return "".join(f"\n\n{title}:\n{bullets(lines)}" for title, lines in notes if lines)


def call_line(action: Action) -> str:
    """Return a tool call in one line."""
    return f"{action.tool} {json_text(action.arguments)}"


def bullets(lines: Iterable[str]) -> str:
    """Return lines as a bulleted list."""
    return "\n".join(f"- {line}" for line in lines)


def json_text(value: object) -> str:
    """Encode a value as JSON text."""
    return _JSON.encode(value).decode()


def system(text: str) -> Message:
    """Return a system message."""
    return Message("system", (TextPart(text),))


def user(text: str, images: Iterable[ImagePart] = ()) -> Message:
    """Return a user message."""
    return Message("user", (TextPart(text), *images))


async def visible_images(model: Model, images: Iterable[Blob], blobs: BlobStore) -> Mapping[str, bytes]:
    """Return the bytes of images by hash; empty for a model without vision."""
    if not model.vision:
        return {}
    return {hash: await blobs.read(hash) for hash in dict.fromkeys(blob.hash for blob in images)}


_HORIZON: Final = 6
"""Number of observations to share a budget among if the length of the path is unknown."""


class ObservationLimits(Struct, frozen=True):
    """Room for observations in a prompt.

    Example::

        Team({"planner": model, "generator": model}, observations=ObservationLimits(each=8_000))
    """

    each: int = 12_000
    """Maximum characters of an observation."""
    total: int = 24_000
    """Maximum characters of all observations of a request."""


_LIMITS: Final = ObservationLimits()


def path_texts(seed: str, path: Sequence[Node], limits: ObservationLimits, depth: int = 0) -> list[str]:
    """Return the observations of a path as they are shown.

    An observation gets an equal share of the budget that earlier ones leave, and its windows depend only on the seed and
    the path up to its node. So the prompt of a path extends that of its parent.

    :param depth: maximum number of observations of the path; 0 if it is unknown.
    """
    shown: list[str] = []
    left = limits.total
    for number in range(len(path)):
        expected = max(1, depth - number) if depth else max(2, _HORIZON - number)
        limit = min(limits.each, left // expected)
        shown.append(_windows(seed, path[: number + 1], shown, limit))
        left = max(0, left - len(shown[-1]))
    return shown


def fair_limit(lengths: Iterable[int], total: int) -> int:
    """Return the largest limit of each text for which all of them fit into the total.

    >>> fair_limit([10, 500, 900], 610)
    300
    """
    ordered = sorted(lengths)
    for position, length in enumerate(ordered):
        share = total // (len(ordered) - position)
        if length > share:
            return max(0, share)
        total -= length
    return max(ordered, default=0)


def result_text(
    result: str, limit: int, question: str, action: Action | None, *goals: str, failure: Failure | None = None
) -> str:
    """Return the result of a step of an episode as it is shown: at most `limit` characters, and the reason of a failed call.

    See docs/team.md.
    """
    if len(result) > limit:
        terms = search_terms(question, *goals, *_arguments(action))
        result = excerpt(result, limit, terms, name_terms(question))
    return with_reason(result, "" if failure is None else f"{failure.kind}: {failure.message}") or "(empty)"


def path_memory(
    seed: str, path: Sequence[Node], max_depth: int, limits: ObservationLimits = _LIMITS
) -> Memory:
    """Return a path of a tree as the memory of an episode, with the results that its planner was shown.

    No planner was shown the observation of a leaf at `max_depth`; it has room of its own, `limits.each`. See docs/training.md.

    :param path: nodes in path order; the root is left out.
    :param max_depth: maximum number of actions of a path of the tree.
    """
    steps = [node for node in path if node.action is not None]
    shown = path_texts(seed, steps[: max_depth - 1], limits, max_depth - 1)
    if len(shown) < len(steps):
        shown.append(_windows(seed, steps, shown, limits.each))
    return Memory(
        turns=tuple(
            Turn(
                number=number,
                step=NextStep(step.intent, "", step.intent, step.call.tool),
                action=step.action,
                result=with_reason(text, step.error) or "(empty)",
                images=step.images,
                failure=step.failure,
            )
            for number, (step, text) in enumerate(zip(steps, shown, strict=True), start=1)
        )
    )


NO_STEP: Final = NextStep("", "", "", "")
"""Step of a turn whose answer was unusable."""
_MAX_UNUSABLE_CHARS: Final = 2_000


def unusable_text(reply: Reply[Any]) -> str:
    """Return the result of a turn whose answer was unusable."""
    return f"The answer can't be used: {'' if reply.failure is None else reply.failure.message}"


def repeated(text: str) -> str:
    """Return an unusable answer as its model is shown it again; a long one is cut."""
    return cut(text, _MAX_UNUSABLE_CHARS) if text.strip() else "(empty)"


def listed_turns(summary: str, turns: Iterable[Turn]) -> str:
    """Summarise turns without a model: each call with the beginning of its result.

    :param summary: summary of earlier turns.
    """
    lines = [
        f"{turn.number}. {call_line(turn.action) if turn.action else '-'}: {turn.result}" for turn in turns
    ]
    return "\n".join([summary, *(cut(" ".join(line.split()), 300) for line in lines)]).strip()


def with_reason(text: str, failure: str) -> str:
    """Return an observation of growth as it is shown, with the reason of a failure."""
    return "\n".join(filter(None, (text, failure and f"The call failed: {failure}")))


def _windows(seed: str, path: Sequence[Node], before: Sequence[str], limit: int) -> str:
    """Return the last observation of a path, given the earlier ones as shown."""
    text = path[-1].text
    if len(text) <= limit:
        return text
    texts = [seed, *(part for step in path for part in (step.intent, *_arguments(step.action)))]
    names = frozenset[str]().union(*map(name_terms, before))
    return excerpt(text, limit, search_terms(*texts), names)


def _arguments(action: Action | None) -> list[str]:
    """Return the texts in the arguments of an action."""
    return [] if action is None else [str(value) for value in action.arguments.values()]
