"""Requests to the roles, rendered as messages for a language model.

Prompts share prefixes, so an endpoint with a prefix cache reads only what is new:

- In growth, the messages of a path extend those of its parent: the system prompt, the seed, then each step as the
  assistant's call and the user's observation. The current instruction is the last part.
- In an episode, the planner and the verifier have one conversation each, which only grows: earlier messages stay as
  they were, and the newest result comes last. It restarts only when the oldest turns are replaced by a summary.
- All requests about the same documents begin with the same message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from agentflow._secrets import mask_settings
from agentflow.models import ImagePart, Message, TextPart
from agentflow.models import Part as MessagePart
from agentflow.questions import (
    FUNCTIONS,
    HiddenRequest,
    ImageFactsRequest,
    OthersRequest,
    ProposalRequest,
    ReadingRequest,
    RecallRequest,
    RepairRequest,
    ShownDocument,
)
from agentflow.team._rendering import (
    Images,
    ObservationLimits,
    bullets,
    call_line,
    cut,
    describe_tools,
    episode_images,
    escape_marks,
    image_label,
    image_parts,
    json_text,
    observation_block,
    path_texts,
    prompt,
    system,
    user,
    with_reason,
)
from agentflow.trace import (
    AnalysisRequest,
    CommandRequest,
    DecidedStep,
    JudgementRequest,
    LookRequest,
    Memory,
    ModelText,
    NextStepRequest,
    Node,
    PlanRequest,
    Proposal,
    QueryAnalysis,
    SolutionRequest,
    SummaryRequest,
    Turn,
    Verdict,
    VerificationRequest,
)

_OWN_ENCODING = ModelText()
_LIMITS = ObservationLimits()
MAX_SEED_VALUES_CHARS = 2_000
"""Maximum characters of the values of a seed in a prompt."""


def plan_messages(
    request: PlanRequest, images: Images, limits: ObservationLimits = _LIMITS
) -> tuple[Message, ...]:
    """Ask for the next actions at a node. See docs/engine.md."""
    head = prompt(
        "planner_actions",
        "system",
        seed_description=request.seed_description,
        tips=request.tips,
        aims=bullets(request.aims),
        inputs=bullets(map(escape_marks, request.inputs)),
        tools=describe_tools(request.tools),
    )
    now = prompt(
        "planner_actions",
        "now",
        count=request.count,
        remaining=request.remaining or "",
        failed=bullets(_failures(request.path)),
        taken=bullets(map(call_line, request.taken)),
        refused=bullets(request.refused),
    )
    # At the last node of a path one action remains, whose observation its planner is not shown.
    depth = len(request.path) + request.remaining - 1 if request.remaining else 0
    shown = path_texts(request.seed, request.path, limits, depth)
    seed = seed_text(request.seed, request.kwargs)
    return (system(head), *_path("planner_actions", seed, request.path, shown, images, now))


def judge_messages(
    request: JudgementRequest, images: Images, limits: ObservationLimits = _LIMITS
) -> tuple[Message, ...]:
    """Ask for the verdict on an observation."""
    path = (*request.path, request.step)
    seen = (
        "Another branch of the exploration already returned the same text." if request.seen_elsewhere else ""
    )
    now = prompt("verifier_verdict", "now", number=len(path), seen=seen)
    return (
        system(prompt("verifier_verdict", "system")),
        *_path("verifier_verdict", request.seed, path, path_texts(request.seed, path, limits), images, now),
    )


def look_messages(request: LookRequest, image: bytes) -> tuple[Message, ...]:
    """Ask whether a region of an image shows what is quoted from it."""
    region = request.region
    edges = (("left", region.left), ("top", region.top), ("right", region.right), ("bottom", region.bottom))
    where = ", ".join(f"{name} {share:.3f}" for name, share in edges)
    shown = [ImagePart(image, request.picture.mime)]
    return _single_turn("generator_image_check", shown, region=where, quote=escape_marks(request.quote))


def analysis_messages(request: AnalysisRequest, images: Images) -> tuple[Message, ...]:
    """Ask for the analysis of a question."""
    return _single_turn(
        "planner_analysis",
        image_parts(request.images, images),
        instructions=request.instructions,
        tools=describe_tools(request.tools),
        question=escape_marks(request.question),
    )


def step_messages(
    request: NextStepRequest, images: Images, *, merged: bool, short: bool = False
) -> tuple[Message, ...]:
    """Ask for the next step of an episode.

    Each user message ends with the number of steps that were left when it was sent.

    :param merged: also ask whether the results suffice.
    :param short: show only the question, the names of the tools and the results, for models trained on such prompts.
    """
    name = "planner_next_step_short" if short else "planner_next_step"
    memory = request.memory
    coming = memory.summarised + len(memory.turns) + 1

    def now(number: int) -> TextPart:
        section = "decide" if merged and number > 1 else "next"
        return TextPart("\n" + prompt(name, section, left=request.turns_left + coming - number))

    names = ", ".join(tool.name for tool in request.tools)
    tools = "" if short else describe_tools(request.tools)
    messages = [system(prompt(name, "system", instructions=request.instructions, names=names, tools=tools))]
    parts = [
        *_begin(name, request.question, request.analysis, memory),
        *image_parts(request.images, images),
        now(memory.summarised + 1),
    ]
    before: Turn | None = None
    for turn in memory.turns:
        messages.append(Message("user", tuple(parts)))
        answered = _planner_answer(turn, before) if merged else turn.step
        messages.append(_assistant(answered, turn.planner_text))
        parts = [*_result(name, turn, images)]
        if turn.decision is not None and not merged:
            verdict = prompt(
                name,
                "verdict",
                assessment=turn.decision.assessment,
                analysis=turn.decision.analysis or "-",
            )
            parts.append(TextPart("\n" + verdict))
        parts.append(now(turn.number + 1))
        before = turn
    return (*messages, Message("user", tuple(parts)))


def command_messages(request: CommandRequest) -> tuple[Message, ...]:
    """Ask for the arguments of a tool call; after a mistake, once more."""
    step = request.step
    messages = _single_turn(
        "executor_arguments",
        tool=describe_tools([request.tool]),
        question=escape_marks(request.question),
        goal=step.sub_goal or step.justification,
        context=step.context,
    )
    if not request.mistake:
        return messages
    mistake = user(prompt("executor_arguments", "mistake", mistake=request.mistake))
    return (*messages, _assistant(request.before), mistake)


def verification_messages(request: VerificationRequest, images: Images) -> tuple[Message, ...]:
    """Ask whether the memory answers the question."""
    tools = bullets(
        f"{tool.name}: {tool.description.strip().partition(chr(10))[0]}" for tool in request.tools
    )
    messages = [system(prompt("verifier_stop", "system", tools=tools))]
    parts = [
        *_begin("verifier_stop", request.question, request.analysis, request.memory),
        *image_parts(request.images, images),
    ]
    memory = request.memory
    done = memory.summarised + len(memory.turns)

    def now(number: int) -> TextPart:
        return TextPart("\n" + prompt("verifier_stop", "now", left=request.turns_left + done - number))

    for turn in memory.turns:
        parts += [*_result("verifier_stop", turn, images), now(turn.number)]
        if turn.decision is not None:
            messages += [Message("user", tuple(parts)), _assistant(turn.decision, turn.verifier_text)]
            parts = []
    if not memory.turns:
        parts.append(now(done))
    return (*messages, Message("user", tuple(parts)))


def solution_messages(request: SolutionRequest, images: Images) -> tuple[Message, ...]:
    """Ask for the answer to a task."""
    memory = request.memory
    shown = list(dict.fromkeys(blob.hash for blob in episode_images(request.images, memory.turns)))
    places = [hash for hash in shown if hash in images]
    visible = [blob.hash for blob in request.images if blob.hash in images]
    return _single_turn(
        "generator_answer",
        image_parts(episode_images(request.images, memory.turns), images),
        unsure=prompt("generator_answer", "abstain" if request.abstain else "guess"),
        question=escape_marks(request.question) + image_label("the question", visible, places),
        analysis=analysis_text(request.analysis),
        count=memory.summarised or "",
        summary=escape_marks(memory.summary),
        steps=_steps(memory.turns, images, places),
    )


def summary_messages(request: SummaryRequest) -> tuple[Message, ...]:
    """Ask for a summary of the oldest turns."""
    return _single_turn(
        "generator_summary",
        question=escape_marks(request.question),
        summary=escape_marks(request.summary),
        steps=_steps(request.turns, {}),
    )


def _single_turn(name: str, images: Iterable[ImagePart] = (), **values: object) -> tuple[Message, ...]:
    """Return the messages of a prompt that asks once: its system prompt, and the instruction with some images."""
    return (system(prompt(name, "system", **values)), user(prompt(name, "now", **values), images))


def turn_size(turn: Turn) -> int:
    """Return the number of characters that a turn takes in a prompt."""
    texts = [turn.planner_text.text or json_text(turn.step), turn.result]
    if turn.decision is not None:
        texts.append(json_text(turn.decision))
    if turn.action is not None:
        texts.append(call_line(turn.action))
    return sum(map(len, texts))


def seed_text(seed: str, kwargs: Mapping[str, object]) -> str:
    """Return a seed with its values, which fill tool arguments of the same name, without secrets."""
    if not kwargs:
        return seed
    values = {name: mask_settings(value, name) for name, value in kwargs.items()}
    lines = cut(bullets(f"{name}: {_value(value)}" for name, value in values.items()), MAX_SEED_VALUES_CHARS)
    return f"{seed}\n\nValues given with it:\n{lines}"


def _value(value: object) -> str:
    return " ".join((value if isinstance(value, str) else json_text(value)).split())


def _failures(path: Sequence[Node]) -> Iterator[str]:
    """Yield a line for each step of a path that failed or returned nothing."""
    for number, step in enumerate(path, start=1):
        if step.error or step.verdict in (Verdict.ERROR, Verdict.EMPTY):
            reason = step.error or "it returned nothing"
            yield f"observation {number}, {cut(call_line(step.call), 300)}: {cut(reason, 300)}"


def _path(
    name: str, seed: str, path: Sequence[Node], shown: Sequence[str], images: Images, now: str
) -> tuple[Message, ...]:
    """Return alternating user and assistant messages; the current instruction is the last part of the last one.

    :param shown: the observations as they are shown.
    """
    messages: list[Message] = []
    parts: list[MessagePart] = [TextPart(prompt(name, "seed", seed=escape_marks(seed)) + "\n")]
    for number, (step, text) in enumerate(zip(path, shown, strict=True), start=1):
        proposal = Proposal(step.intent, step.call.tool, step.call.arguments)
        messages.append(Message("user", tuple(parts)))
        messages.append(Message("assistant", (TextPart(json_text(proposal)),)))
        parts = [TextPart(_observation(number, step, text, images) + "\n"), *_step_images([step], images)]
    return (*messages, Message("user", (*parts, TextPart(now))))


def _observation(number: int, step: Node, text: str, images: Images) -> str:
    return observation_block(number, with_reason(text, step.error), step.images, images)


def _step_images(steps: Iterable[Node], images: Images) -> list[ImagePart]:
    return image_parts((blob for step in steps for blob in step.images), images)


def _begin(name: str, question: str, analysis: QueryAnalysis, memory: Memory) -> list[MessagePart]:
    text = prompt(name, "begin", question=escape_marks(question), analysis=analysis_text(analysis))
    parts: list[MessagePart] = [TextPart(text + "\n")]
    if memory.summarised:
        summary = prompt(name, "summary", count=memory.summarised, summary=escape_marks(memory.summary))
        parts.append(TextPart(f"\n{summary}\n"))
    return parts


def _result(name: str, turn: Turn, images: Images) -> list[MessagePart]:
    return [TextPart(_turn(name, "result", turn, images) + "\n"), *image_parts(turn.images, images)]


def _turn(name: str, section: str, turn: Turn, images: Images, places: Sequence[str] = ()) -> str:
    return prompt(
        name,
        section,
        number=turn.number,
        goal=escape_marks(turn.step.sub_goal) or "(none)",
        call="nothing" if turn.action is None else escape_marks(call_line(turn.action)),
        observation=observation_block(turn.number, turn.result, turn.images, images, places),
    )


def _steps(turns: Iterable[Turn], images: Images, places: Sequence[str] = ()) -> str:
    return "\n\n".join(_turn("generator_answer", "step", turn, images, places) for turn in turns)


def _planner_answer(turn: Turn, before: Turn | None) -> object:
    """Return the answer with which a planner that verifies its own work began this turn.

    There was nothing to decide before the first turn.
    """
    if before is None or before.decision is None:
        return turn.step
    return DecidedStep(before.decision, turn.step)


def analysis_text(analysis: QueryAnalysis | None) -> str:
    """Return the analysis of a question, a line for each part."""
    if analysis is None:
        return ""
    lines = (
        ("Question", analysis.concise_summary),
        ("Skills", analysis.required_skills),
        ("Tools", analysis.relevant_tools),
        ("Considerations", analysis.additional_considerations),
    )
    return "\n".join(f"{title}: {escape_marks(text)}" for title, text in lines if text)


def _assistant(answer: object, text: ModelText = _OWN_ENCODING) -> Message:
    """Return an answer in the model's own words where they are known, so that the next prompt extends them exactly."""
    return Message("assistant", (TextPart(text.text or json_text(answer)),), text.mark)


NO_IMAGES: Final[Images] = MappingProxyType({})


def proposal_messages(request: ProposalRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask for questions about documents."""
    examples = "\n\n".join(
        f"Question: {example.question}\nAnswer: {example.answer}" for example in request.examples
    )
    now = prompt(
        "generator_questions",
        "now",
        count=request.count,
        keep=request.keep,
        min_documents=request.min_documents,
        min_steps=request.min_steps,
        functions=FUNCTIONS,
        seed_description=request.seed_description,
        seed=escape_marks(seed_text(request.seed, request.kwargs)),
        kinds=", ".join(request.kinds),
        tips=request.tips,
        examples=examples,
        asked=bullets(map(escape_marks, request.asked)),
    )
    return _about(request.documents, now, images)


def repair_messages(request: RepairRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask for drafts without the faults that checks have found."""
    drafts = "\n\n".join(
        f"Draft {draft.number}: {escape_marks(json_text(draft.draft))}\nIts faults:\n{bullets(draft.reasons)}"
        for draft in request.fallen
    )
    now = prompt(
        "generator_question_repair",
        "now",
        max_words=request.max_words,
        min_steps=request.min_steps,
        functions=FUNCTIONS,
        drafts=drafts,
    )
    return _about(request.documents, now, images)


def image_fact_messages(request: ImageFactsRequest, images: Images) -> tuple[Message, ...]:
    """Ask for the facts that an image shows."""
    now = prompt(
        "generator_image_facts",
        "now",
        seed=escape_marks(seed_text(request.seed, request.kwargs)),
        call=call_line(request.action),
    )
    head = prompt("generator_image_facts", "system", seed_description=request.seed_description)
    return (system(head), user(now, image_parts([request.image], images)))


def hidden_messages(request: HiddenRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask a reader from whom some documents are hidden."""
    now = prompt("reader_hidden", "now", question=escape_marks(request.question))
    return _about(request.documents, now, images)


def reading_messages(request: ReadingRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask a reader for answers from documents."""
    questions = "\n".join(
        f"{question.number}. {escape_marks(question.question)}" for question in request.questions
    )
    sample = request.sample + 1 if request.sample else ""
    now = prompt("reader_questions", "now", questions=questions, sample=sample)
    return _about(request.documents, now, images)


def recall_messages(request: RecallRequest) -> tuple[Message, ...]:
    """Ask a question without any text."""
    sample = request.sample + 1 if request.sample else ""
    now = prompt("reader_recall", "now", question=escape_marks(request.question), sample=sample)
    return (system(prompt("reader_recall", "system")), user(now))


def others_messages(request: OthersRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask a reader for other answers."""
    now = prompt(
        "reader_others",
        "now",
        question=escape_marks(request.question),
        answer=escape_marks(request.answer),
        candidates=escape_marks(", ".join(request.candidates)) or "those that come to mind",
    )
    return _about(request.documents, now, images)


def _about(documents: Sequence[ShownDocument], now: str, images: Images) -> tuple[Message, ...]:
    """Return a message with documents, and one with a request and their images."""
    blobs = [blob for document in documents for blob in document.images]
    shown = image_parts(blobs, images)
    places = list(dict.fromkeys(blob.hash for blob in blobs if blob.hash in images))
    texts = (shown_document(document, places) for document in documents)
    return (system(prompt("documents", "system", documents="\n\n".join(texts))), user(now, shown))


def shown_document(document: ShownDocument, images: Sequence[str] = ()) -> str:
    """Return a document as roles are shown it: numbered passages, each below its headings.

    :param images: hashes of the images that the model sees, in order.
    """
    extent = "result of a tool" if document.computed else "complete" if document.complete else "extract"
    lines: list[str] = []
    heading = ""
    for passage in document.passages:
        if passage.heading != heading:
            heading = passage.heading
            lines.append(f"## {escape_marks(heading)}" if heading else "##")
        text = escape_marks(passage.text)
        if passage.image is not None:
            seen = passage.image.hash in images
            text = f"(image {images.index(passage.image.hash) + 1} of those below)" if seen else "(an image)"
        lines.append(f"[{passage.number}] {text}")
    name = escape_marks(document.title or document.id).replace('"', "'")
    body = "\n".join(lines)
    return f'<document number="{document.number}" title="{name}" extent="{extent}">\n{body}\n</document>'
