"""Conversations: a path retold as one tool-using agent, in the notations of trainers."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from agentflow._typeguards import is_list
from agentflow.engine import fixed_names
from agentflow.exports._rows import Dropped, DropReason, ExportRow, Take
from agentflow.inspection import AnswerRecord, SeedRecord
from agentflow.models import ToolSpec
from agentflow.runs import image_file
from agentflow.team import result_text
from agentflow.text import escape_all_special_tokens, escape_special_tokens
from agentflow.trace import Action, ChatBuilder, ChatMessage, Node, Tree, Verdict

_RESULT_CHARS: Final = 6_000
"""Characters of a result that a single agent is shown."""
_MODEL_TURNS: Final = ("gpt", "function_call")
"""Turns of the model in the notation of LLaMA-Factory."""
_PLACEHOLDERS: Final = ("<image>", "<video>", "<audio>")
_HERMES: Final = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    'XML tags:\n<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
"""Prompt of the tools in the notation of Hermes, as the templates of Qwen 2.5 and 3 write it."""


@dataclass(frozen=True, kw_only=True)
class ExportContext:
    """Facts that all rows of an export depend on."""

    tools: Sequence[ToolSpec] = ()
    """Tools of the run; empty: unknown."""
    take: Take = Take.ALL
    """Selection of answers."""
    has_images: bool = False
    """The run has images, so every row has a column for them."""
    numbers: Iterator[int] = field(default_factory=count)
    """Numbers for rows."""
    done: set[str] = field(default_factory=set[str])
    """Tasks that have their row, in formats with one for all episodes of a task."""

    @cached_property
    def functions(self) -> list[dict[str, Any]]:
        """Schemas of the tools in the notation of OpenAI."""
        return tool_functions(self.tools)

    def functions_of(self, answer: AnswerRecord | None) -> list[dict[str, Any]]:
        """Return the schemas of the tools that were offered.

        :param answer: an answer; `None`: an action of a tree.
        """
        return self.functions if answer is None or not answer.messages else tool_functions(answer.tools)

    def tools_column(self, answer: AnswerRecord | None = None) -> dict[str, Any]:
        """Return the column of the tools that were offered, as JSON; none if the run kept none."""
        return {"tools": encode(self.functions_of(answer))} if self.functions else {}

    def columns(self, answer: AnswerRecord, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        """Return the columns that all rows of conversations share."""
        images = {"images": image_files(messages)} if self.has_images else {}
        return {**self.tools_column(answer), **images}


def fixed_arguments_of(tree: Tree, node: Node) -> list[str]:
    """Return the names of the arguments that the seed or the task fixed."""
    return [] if node.action is None else fixed_names(node.action.arguments, tree.seed.kwargs)


def chosen_answers(
    trees: Sequence[SeedRecord], take: Take
) -> Iterator[tuple[SeedRecord, AnswerRecord] | Dropped]:
    """Yield the answers of a group that are taken, and the reason for each other one."""
    answers = [(tree, answer) for tree in trees for answer in tree.answers]
    rights = [(tree, answer) for tree, answer in answers if answer.right and _has_answer(answer)]
    best = min(rights, key=lambda pair: (-(pair[1].score or 0.0), pair[1].length), default=None)
    for tree in trees:
        if not tree.answers and not tree.surplus_tasks:
            yield Dropped(tree.group, tree.id, no_answer_reason(tree))
        for task in tree.surplus_tasks:
            yield Dropped(tree.group, task, DropReason.SURPLUS)
    for tree, answer in answers:
        reason: DropReason | None = None
        if not _has_answer(answer):
            reason = DropReason.NO_ANSWER
        elif take is not Take.ALL and not answer.right:
            reason = wrong_reason(tree, answer)
        elif take is Take.BEST and best is not None and answer is not best[1] and not _is_part(tree, best[0]):
            reason = DropReason.NOT_BEST
        yield (tree, answer) if reason is None else Dropped(tree.group, answer.id, reason)


def _has_answer(answer: AnswerRecord) -> bool:
    # A recorded conversation may end with a call.
    return bool(answer.answer or answer.messages)


def _is_part(tree: SeedRecord, best: SeedRecord) -> bool:
    """Return whether an answer of a tree is a conversation of the best episode, which may have several."""
    return tree is best and tree.is_episode


def no_answer_reason(tree: SeedRecord) -> DropReason:
    """Return the reason that a tree has no answers."""
    if not tree.is_episode:
        return DropReason.NO_QUESTION
    return DropReason.NO_MESSAGES if tree.calls else DropReason.NO_ANSWER


def wrong_reason(tree: SeedRecord, answer: AnswerRecord) -> DropReason:
    """Return the reason that an answer is not right."""
    if answer.surplus:
        return DropReason.SURPLUS
    unscored = tree.is_episode and answer.score is None
    return DropReason.NO_SCORE if unscored else DropReason.NOT_CORRECT


def conversation_of(tree: SeedRecord, answer: AnswerRecord) -> list[ChatMessage]:
    """Return an answer with its path as messages; masked ones have `"trainable": False`, context that stays also `"context"`."""
    if answer.messages:
        return list(answer.messages)
    nodes = [tree.tree.by_id[id] for id in answer.nodes]
    chat = begin_chat(answer.question, nodes[0] if tree.is_episode and nodes else None)
    for node in nodes:
        add_call(chat, tree, node, answer.question)
    has_images = any(node.images for node in nodes)
    chat.answer(escape_special_tokens(answer.answer), trainable=answer.is_shown or has_images)
    return chat.messages


def begin_chat(question: str, root: Node | None = None) -> ChatBuilder:
    """Return a chat with the question and the images of a root. Its texts, and those of calls, have no special tokens."""
    question = escape_special_tokens(question)
    chat = ChatBuilder(question)
    if root is not None and (images := root.images):
        parts = [{"type": "image", "path": image_file(image)} for image in images]
        chat.messages[0]["content"] = [*parts, {"type": "text", "text": question}]
    return chat


def add_call(chat: ChatBuilder, tree: SeedRecord, node: Node, question: str) -> None:
    """Add the action of a node and its result, shortened as a single agent is shown it; a root adds nothing."""
    if node.action is None:
        return
    fixed = fixed_arguments_of(tree.tree, node)
    written = {name: value for name, value in node.action.arguments.items() if name not in fixed}
    call = Action(node.action.tool, written)
    # The results of a rollout contain the reason of a failure already.
    failure = None if tree.is_episode else node.failure
    shown = result_text(node.text, _RESULT_CHARS, question, call, node.intent, failure=failure)
    images = [image_file(image) for image in node.images]
    arguments = {
        escape_special_tokens(name): escape_all_special_tokens(value) for name, value in written.items()
    }
    tool, intent, shown = (escape_special_tokens(text) for text in (call.tool, node.intent, shown))
    chat.call(tool, arguments, intent, shown, images=images, failed=node.verdict is not Verdict.NEW)


def trained_spans(messages: Sequence[ChatMessage]) -> list[tuple[int, int]]:
    """Return start and end of the longest parts that end with an answer of the model and hold no masked one.

    Each unmasked message of the model is in exactly one of them.
    """
    spans: list[tuple[int, int]] = []
    start: int | None = None
    end = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if message.get("trainable", True):
            start, end = (index if start is None else start), index + 1
        elif start is not None:
            spans.append((start, end))
            start = None
    return spans if start is None else [*spans, (start, end)]


def is_masked(message: ChatMessage) -> bool:
    """Return whether a message failed or gave nothing new; context that another row trains is not masked."""
    return not message.get("trainable", True) and not message.get("context")


def without_masked(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Leave out masked calls with their results, for formats that can't mask; a masked answer leaves no end."""
    left: list[ChatMessage] = []
    masked = False
    for message in messages:
        if message["role"] == "assistant":
            masked = is_masked(message)
        if message["role"] in ("system", "user") or not masked:
            left.append(message)
    while left and left[-1]["role"] != "assistant":
        left.pop()
    return left


def text_of(content: object, *, placeholders: bool = False) -> str:
    """Return the text of a message.

    :param placeholders: images are written as `<image>`, and texts that look like a placeholder are changed.
    """
    if not is_list(content):
        text = str(content)
        return _without_placeholders(text) if placeholders else text
    parts: list[str] = []
    for part in content:
        if part.get("type") != "image":
            parts.append(text_of(part.get("text", ""), placeholders=placeholders))
        elif placeholders:
            parts.append("<image>")
    return "\n".join(parts) or "(empty)"


def _without_placeholders(text: str) -> str:
    for word in _PLACEHOLDERS:
        text = text.replace(word, f"[{word[1:-1]}]")
    return text


def image_files(messages: Iterable[ChatMessage]) -> list[str]:
    """Return the paths of the images in messages, in order."""
    return [
        part["path"]
        for message in messages
        if is_list(message.get("content"))
        for part in message["content"]
        if part.get("type") == "image"
    ]


def tool_functions(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return schemas of tools in the notation of OpenAI."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": escape_special_tokens(tool.description),
                "parameters": escape_all_special_tokens(tool.schema),
            },
        }
        for tool in tools
    ]


def encode(value: object) -> str:
    """Return a value as one line of JSON; letters stay as they are."""
    return json.dumps(value, ensure_ascii=False)


def plain(message: ChatMessage) -> ChatMessage:
    """Return a message without its mask."""
    return {name: value for name, value in message.items() if name not in ("trainable", "context")}


def _with_text_arguments(message: ChatMessage) -> ChatMessage:
    """Return a message whose arguments are JSON text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": encode(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def trl_parts(message: ChatMessage) -> ChatMessage:
    """Return a message whose images are placeholders, as TRL takes them beside a column `images`."""
    content = message["content"]
    if is_list(content):
        content = [{"type": "image"} if part["type"] == "image" else part for part in content]
    return {**plain(message), "content": content}


class _Retold(NamedTuple):
    """Answer as a conversation."""

    tree: SeedRecord
    answer: AnswerRecord
    messages: list[ChatMessage]


_Rows: TypeAlias = Iterator[ExportRow | Dropped]
GroupRows: TypeAlias = Callable[[Sequence[SeedRecord], ExportContext], _Rows]
"""Yields the rows of the trees or episodes of one seed or task, and the reason for everything that is in none."""


def _of_answers(make: Callable[[_Retold, ExportContext], _Rows]) -> GroupRows:
    """Return a function that makes the rows of each answer that is taken, and yields at the end the reason for each other one."""

    @wraps(make)
    def rows(trees: Sequence[SeedRecord], export: ExportContext) -> _Rows:
        dropped: list[Dropped] = []
        for chosen in chosen_answers(trees, export.take):
            if isinstance(chosen, Dropped):
                dropped.append(chosen)
                continue
            tree, answer = chosen
            made = list(make(_Retold(tree, answer, conversation_of(tree, answer)), export))
            yield from made or [Dropped(tree.group, answer.id, DropReason.NOTHING_TO_TRAIN)]
        yield from dropped

    return rows


@_of_answers
def trl_sft(path: _Retold, export: ExportContext) -> _Rows:
    """Yield `prompt` and `completion`: a masked call splits a path, so that no row trains it."""
    tree, answer, messages = path
    spans = trained_spans(messages)
    for number, (start, end) in enumerate(spans):
        values: dict[str, Any] = {
            "id": answer.id if len(spans) == 1 else f"{answer.id}/{number}",
            "prompt": [trl_parts(message) for message in messages[:start]],
            "completion": [trl_parts(message) for message in messages[start:end]],
            **export.columns(answer, messages[:end]),
        }
        yield ExportRow("train", tree.group, values, tuple(image_files(messages[:end])))


@_of_answers
def openai(path: _Retold, export: ExportContext) -> _Rows:
    """Yield `messages` as the API of OpenAI takes them for fine-tuning; masked ones have weight 0."""
    tree, answer, messages = path
    if trained_spans(messages):
        values: dict[str, Any] = {"messages": [_openai_message(message) for message in messages]}
        values |= {"tools": functions} if (functions := export.functions_of(answer)) else {}
        yield ExportRow("train", tree.group, values, tuple(image_files(messages)))


@_of_answers
def sharegpt(path: _Retold, export: ExportContext) -> _Rows:
    """Yield `conversations` that alternate strictly; masked calls are left out, because LLaMA-Factory can't mask."""
    tree, answer, messages = path
    if left := without_masked(messages):
        values: dict[str, Any] = {
            "id": answer.id,
            "conversations": _sharegpt_turns(left),
            **export.columns(answer, left),
        }
        yield ExportRow("train", tree.group, values, tuple(image_files(left)))
        yield from _dropped_calls(tree, answer)


@_of_answers
def axolotl(path: _Retold, export: ExportContext) -> _Rows:
    """Yield `messages` with `training` for each."""
    tree, answer, messages = path
    if trained_spans(messages):
        rows = [
            {
                **_with_text_arguments(plain(message)),
                "training": message["role"] == "assistant" and message.get("trainable", True),
            }
            for message in messages
        ]
        values: dict[str, Any] = {"id": answer.id, "messages": rows, **export.tools_column(answer)}
        yield ExportRow("train", tree.group, values, tuple(image_files(messages)))


@_of_answers
def verl_sft(path: _Retold, export: ExportContext) -> _Rows:
    """Yield `messages` whose calls are text in the notation of Hermes; masked calls are left out."""
    tree, answer, messages = path
    if left := without_masked(messages):
        rows = [{"role": message["role"], "content": hermes_text(message)} for message in left]
        if functions := export.functions_of(answer):
            before = f"{rows.pop(0)['content']}\n\n" if rows[0]["role"] == "system" else ""
            lines = "\n".join(encode(tool) for tool in functions)
            rows.insert(0, {"role": "system", "content": before + _HERMES.format(lines)})
        yield ExportRow("train", tree.group, {"id": answer.id, "messages": rows})
        yield from _dropped_calls(tree, answer)


def _dropped_calls(tree: SeedRecord, answer: AnswerRecord) -> Iterator[Dropped]:
    """Yield the masked calls of an answer, by the ids of their nodes; of a recorded conversation, by the numbers of their messages."""
    nodes = [tree.tree.by_id[id] for id in answer.nodes]
    masked = [node.id for node in nodes if node.action is not None and node.verdict is not Verdict.NEW]
    if answer.messages:
        masked = [str(number) for number, message in enumerate(answer.messages) if is_masked(message)]
    for id in masked:
        yield Dropped(tree.group, f"{answer.id}/{id}", DropReason.MASKED)


def hermes_text(message: Mapping[str, Any]) -> str:
    """Return a message as text, its calls in the notation of Hermes."""
    text = text_of(message["content"])
    calls = [
        f"<tool_call>\n{encode({'name': call['function']['name'], 'arguments': call['function']['arguments']})}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    return "\n".join([*([text] if text or not calls else []), *calls])


def _openai_message(message: ChatMessage) -> ChatMessage:
    shown = _with_text_arguments(plain(message))
    for name in ("name", "reasoning_content"):
        shown.pop(name, None)
    if message["role"] == "assistant" and not message.get("trainable", True):
        shown["weight"] = 0
    if is_list(content := shown["content"]):
        shown["content"] = [
            {"type": "image_url", "image_url": {"url": part["path"]}} if part["type"] == "image" else part
            for part in content
        ]
    return shown


def _sharegpt_turns(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Return messages as turns that alternate: those of one side that follow each other are one turn."""
    turns: list[dict[str, str]] = []
    if len(messages) > 1 and messages[0]["role"] == "system" and messages[1]["role"] != "assistant":
        turns.append({"from": "system", "value": text_of(messages[0]["content"], placeholders=True)})
    for message in messages[len(turns) :]:
        is_model = message["role"] == "assistant"
        turn = _sharegpt_turn(message)
        before = turns[-1]["from"] if turns else "system"
        if before != "system" and is_model is (before in _MODEL_TURNS):
            last = turns[-1]
            if "function_call" not in (last["from"], turn["from"]):
                last["value"] += f"\n\n{turn['value']}"
            elif last["from"] == turn["from"]:
                last["value"] = encode([*json.loads(last["value"]), *json.loads(turn["value"])])
            elif turn["from"] == "function_call":
                turns[-1] = turn
        else:
            turns.append(turn)
    return turns


def _sharegpt_turn(message: ChatMessage) -> dict[str, str]:
    if calls := message.get("tool_calls"):
        functions = [
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in calls
        ]
        return {"from": "function_call", "value": encode(functions)}
    role = {"assistant": "gpt", "tool": "observation"}.get(message["role"], "human")
    return {"from": role, "value": text_of(message["content"], placeholders=True)}
