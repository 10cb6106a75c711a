"""The verifier: judges observations, by rule or by a model, and decides when an episode may stop."""

import re
from typing import Literal, TypeAlias

from agentflow.models import Model
from agentflow.team._messages import judge_messages, verification_messages
from agentflow.team._pool import Role, answer_request, in_worker
from agentflow.team._rendering import ObservationLimits, episode_images, visible_images
from agentflow.text import (
    SHINGLE_LENGTH,
    add_plurals,
    count_words,
    is_content_word,
    shingles,
    word_set,
    words,
)
from agentflow.trace import (
    BlobStore,
    Decision,
    Judgement,
    JudgementRequest,
    Reply,
    Verdict,
    VerificationRequest,
)

Verify: TypeAlias = Literal["rule", "model", "off"]
"""Judge by rule; by a model unless the verdict is obvious; or not at all."""


class Verifier(Role):
    """Role that judges results. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(
        self,
        verify: Verify,
        model: Model,
        blobs: BlobStore,
        *,
        workers: int,
        observations: ObservationLimits,
    ) -> None:
        """Create the role.

        :param verify: method for judging observations during growth.
        :param model: model that judges and verifies.
        :param blobs: store of images, for models with vision.
        :param workers: maximum number of workers.
        :param observations: room for observations in a prompt.
        """
        super().__init__("verifiers", workers=workers)
        self._verify: Verify = verify
        self._model = model
        self._blobs = blobs
        self._observations = observations

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """Judge an observation without a model; `None` if a model is required."""
        match self._verify:
            case "off":
                return Judgement(Verdict.NEW)
            case "rule":
                return judge_by_rule(request)
            case "model":
                return judge_obvious(request)

    @in_worker
    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """Judge an observation, by rule where possible."""
        judgement = self.by_rule(request)
        if judgement is not None:
            return Reply(value=judgement)
        images = (blob for step in (*request.path, request.step) for blob in step.images)
        visible = await visible_images(self._model, images, self._blobs)
        messages = judge_messages(request, visible, self._observations)
        return await answer_request(self._model, request, Judgement, messages, role="verifier")

    @in_worker
    async def decide(self, request: VerificationRequest) -> Reply[Decision]:
        """Decide whether the memory answers the question."""
        images = episode_images(request.images, request.memory.turns)
        messages = verification_messages(request, await visible_images(self._model, images, self._blobs))
        return await answer_request(self._model, request, Decision, messages, role="verifier")


REPEATED = 0.9
"""Share of a text that must be known for the text to count as a repetition."""
MIN_WORDS = 12
"""Shorter texts are repetitions only if they are equal: few words agree by chance."""
MIN_CONTENT_WORDS = 20
"""Content words that a text needs before it can be off topic."""

_NO_RESULT = re.compile(
    r"(?:none|null|nil|nan|undefined|empty|n a"
    r"|(?:(?:there (?:are|were|is|was) )?(?:no|0|zero)(?: \w+)? "
    r"(?:hits?|results?|match(?:es)?|documents?|entries|rows?|data|output|files?|items?|jobs?|variables|content|answers?)"
    r"|nothing|not|none)(?: (?:was|were))?(?: (?:found|returned|available|matched))?)"
)
_EMPTY_FIELD = re.compile(r"\S+: none", re.IGNORECASE)


def judge_by_rule(request: JudgementRequest) -> Judgement:
    """Judge an observation by rule: error, empty, repeats, off topic, in this order; otherwise new.

    It repeats if the path already contains 90 % of it, or if an earlier node of the tree returned the same text. It
    is off topic if it has at least 20 content words and shares none with the seed, the intents and the path's
    observations; tools that run code are exempt. See docs/team.md.
    """
    obvious = judge_obvious(request)
    if obvious is not None:
        return obvious
    found = words(request.step.text)
    if found and request.seen_elsewhere:
        return Judgement(Verdict.REPEATS, "another node of the tree returned the same text")
    if _repeats(found, request):
        return Judgement(Verdict.REPEATS, "the path already contains it")
    if not request.computes and _is_off_topic(request):
        return Judgement(Verdict.OFF_TOPIC, "it shares no content word with the seed and the path")
    return Judgement(Verdict.NEW)


def judge_obvious(request: JudgementRequest) -> Judgement | None:
    """Judge an observation that is an error or empty; `None` for any other."""
    if request.step.error:
        return Judgement(Verdict.ERROR, request.step.error)
    if not request.step.images and _is_empty(request.step.text):
        return Judgement(Verdict.EMPTY, "the observation is empty")
    return None


def _is_empty(text: str) -> bool:
    found = words(text)
    if len(found) > 100:
        return False
    if not found or _NO_RESULT.fullmatch(" ".join(found)):
        return True
    return all(_EMPTY_FIELD.fullmatch(line.strip()) for line in text.splitlines() if line.strip())


def _repeats(found: tuple[str, ...], request: JudgementRequest) -> bool:
    if request.step.images:
        return any(request.step.images == step.images and found == words(step.text) for step in request.path)
    if len(found) < MIN_WORDS:
        return any(words(step.text) == found for step in request.path)
    text, path = request.step.text, [step.text for step in request.path]
    unknown = len(word_set(text).difference(*map(word_set, path)))
    # An unknown word makes the shingle that begins with it unknown, except for the last few, which begin none. This
    # settles most new texts without computing the path's shingles.
    if unknown - SHINGLE_LENGTH + 1 > (1 - REPEATED) * len(found):
        return False
    own = shingles(text)
    return len(own.difference(*map(shingles, path))) <= (1 - REPEATED) * len(own)


def _is_off_topic(request: JudgementRequest) -> bool:
    texts = [request.seed, request.step.intent]
    for step in request.path:
        texts += [step.text, step.intent]
    own, known = word_set(request.step.text), [word_set(text) for text in texts]
    if any(is_content_word(word) for each in known for word in own & each):
        return False
    content = frozenset(filter(is_content_word, own))
    if count_words(content) < MIN_CONTENT_WORDS:
        return False
    forms = add_plurals(content)
    # A text in another script may well be on the subject, so some script must be shared.
    same_script = not _scripts(content).isdisjoint(_scripts(frozenset[str]().union(*known)))
    return same_script and all(forms.isdisjoint(each) for each in known)


def _scripts(found: frozenset[str]) -> frozenset[bool]:
    return frozenset(word[0] < "\u0250" for word in found)
