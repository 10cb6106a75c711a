"""Token APIs of the fake endpoint, with the paths and formats of vLLM: render, generate, derender and weight updates.

Each byte of UTF-8 is a token; two more open and close a message. Tools and their calls are written as Hermes models do.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agentflow._typeguards import is_object
from agentflow.testing.endpoint._play import play, use_tool
from agentflow.testing.endpoint._prompt import (
    FakeToolCall,
    Prompt,
    PromptBody,
    prompt_of_body,
)

OPEN, CLOSE = 256, 257
"""Tokens that open and close a message."""
_MESSAGE = re.compile(r"\u241d(\w+)\n([^\u241e]*)(?:\u241e\n?|$)")
_TOOLS = re.compile(r"\n*<tools>\n(.*?)</tools>$", re.DOTALL)
_REPLY = re.compile(r"^<tool_response>\n(.*)\n</tool_response>$", re.DOTALL)
_CALLS = re.compile(r"\n?<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_MAX_TOKENS = 20_000


class _SamplingParameters(Struct):
    n: int = 1
    max_tokens: int | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    structured_outputs: dict[str, Any] | None = None


class GenerateBody(Struct):
    """Request for `/inference/v1/generate`."""

    token_ids: list[int]
    """Prompt."""
    sampling_params: _SamplingParameters
    """Sampling parameters."""
    model: str = "fake"
    """Name of the model."""
    stream: bool = False
    """Answer with events."""


class _RenderBody(Struct):
    prompt: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tool_choice: Any = "auto"


class _GeneratedChoice(Struct):
    token_ids: list[int]
    index: int = 0
    finish_reason: str = "stop"


class _GeneratedResponse(Struct):
    choices: list[_GeneratedChoice]
    request_id: str = ""


class _WeightRequest(Struct):
    new_version: str = ""
    kwargs: dict[str, str] = {}


class FakeWeights:
    """Weights of the fake endpoint: a folder and a version, which change nothing about its answers."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """Folder loaded last."""
        self.version = "0"
        """Version."""
        self.paused = False
        """Answers wait."""

    def answer(self, path: str, body: bytes) -> dict[str, Any] | None:
        """Answer a control request; `None` if the path is none."""
        request = msgspec.json.decode(body or b"{}", type=_WeightRequest)
        match path:
            case "/pause" | "/resume":
                self.paused = path == "/pause"
            case "/collective_rpc":
                self.folder = request.kwargs["folder"]
                report: dict[str, object] = {
                    "dtype": "float32",
                    "tensors": 1,
                    "verified": 1,
                    "stale": [],
                    "missing": [],
                }
                return {"results": [report]}
            case "/update_weight_version":
                self.version = request.new_version
            case "/is_paused" | "/weight_info" | "/health":
                pass
            case _:
                return None
        return {"is_paused": self.paused, "weight_version": self.version, "folder": self.folder}


class _DerenderBody(Struct):
    generate_response: _GeneratedResponse
    chat_request: PromptBody | None = None


class FakeSample(Struct):
    """Sampled answer."""

    ids: list[int]
    """Tokens."""
    text: str
    """Text, without a stop string."""
    finish: str = "stop"
    """Reason for its end."""
    stop: str | None = None
    """Stop string that ended it."""

    def choice(self, index: int, version: str) -> dict[str, Any]:
        """Return it as a choice of the generate API."""
        values = [
            {"token": str(id), "logprob": value}
            for id, value in zip(self.ids, logprobs_of(self.ids), strict=True)
        ]
        return {
            "index": index,
            "text": self.text,
            "finish_reason": self.finish,
            "stop_reason": self.stop,
            "token_ids": self.ids,
            "logprobs": {"content": values},
            "weight_versions": [{"version": version, "start": 0, "end": len(self.ids)}],
        }


def logprobs_of(ids: Sequence[int]) -> list[float]:
    """Return log-probabilities that differ by token and place, so that an exchange of two is noticed."""
    return [-0.01 - ((31 * id + 17 * index) % 97) / 32 for index, id in enumerate(ids)]


def encoded(text: str) -> list[int]:
    """Return the tokens of a text."""
    return list(text.encode())


def decoded(ids: Sequence[int]) -> str:
    """Return the text of tokens; those that open and close a message are control pictures."""
    marks = {OPEN: "\u241d".encode(), CLOSE: "\u241e".encode()}
    return b"".join(marks.get(id, bytes((id % 256,))) for id in ids).decode(errors="replace")


def rendered_ids(body: PromptBody, *, begin: bool = True, leave_open: bool = False) -> list[int]:
    """Return the tokens of a conversation.

    :param begin: begin the next answer.
    :param leave_open: do not close the last message.
    """
    ids: list[int] = []
    messages = list(body.messages)
    if body.tools:
        head = messages.pop(0).text if messages and messages[0].role == "system" else ""
        listed = "".join(
            f"{_json({'name': tool.function.name, 'parameters': tool.function.parameters})}\n"
            for tool in body.tools
        )
        ids += _message("system", f"{head}\n\n<tools>\n{listed}</tools>".lstrip("\n"))
    for message in messages:
        if message.role == "tool":
            ids += _message("user", f"<tool_response>\n{message.text}\n</tool_response>")
        else:
            ids += _message(message.role, answer_text(message.text, message.tool_calls))
    if leave_open:
        return ids[:-2]
    return [*ids, OPEN, *encoded("assistant\n")] if begin else ids


def answer_text(text: str, calls: Sequence[FakeToolCall]) -> str:
    """Return the text of an answer as the model writes it."""
    written = (f"<tool_call>\n{_json(_call_of(call))}\n</tool_call>" for call in calls)
    return "\n".join(part for part in (text, *written) if part)


def render(body: bytes, *, tokenizes: bool = False) -> dict[str, Any]:
    """Answer `/v1/chat/completions/render`, or `/tokenize`.

    :raises msgspec.MsgspecError: if the body is invalid.
    """
    request, shape = msgspec.json.decode(body, type=PromptBody), msgspec.json.decode(body, type=_RenderBody)
    if tokenizes and shape.prompt is not None:
        ids = encoded(shape.prompt)
    else:
        ids = rendered_ids(
            request, begin=shape.add_generation_prompt, leave_open=shape.continue_final_message
        )
    if tokenizes:
        return {"tokens": ids, "count": len(ids)}
    forced: dict[str, Any] = {}
    if shape.tool_choice not in ("auto", "none"):
        forced = {"structured_outputs": {"structural_tag": _json(shape.tool_choice), "_backend": None}}
    return {"request_id": "render", "token_ids": ids, "model": request.model, "sampling_params": forced}


def samples_of(request: GenerateBody, tool_turns: int) -> list[FakeSample]:
    """Return answers to a prompt of tokens: a function of the prompt and the seed."""
    params = request.sampling_params
    outputs = params.structured_outputs or {}
    body = read_ids(request.token_ids)
    body.model = request.model
    schema: object = outputs.get("json")
    forced = "structural_tag" in outputs
    prompt = prompt_of_body(body, schema if is_object(schema) else None)
    begun = prompt.hash
    samples: list[FakeSample] = []
    for number in range(params.n):
        prompt.hash = begun if params.seed is None else _mixed(begun, params.seed, number)
        if prompt.tools and (forced or prompt.turns < tool_turns):
            text = answer_text("", [FakeToolCall.of("", *use_tool(prompt))])
        else:
            text = play(prompt)
            if text == "unknown" and params.seed is not None:
                text = f"unknown {prompt.hash % 10}"
        samples.append(_ended(text, params))
    return samples


def derender(body: bytes) -> dict[str, Any]:
    """Answer `/v1/chat/completions/derender`.

    :raises msgspec.MsgspecError: if the body is invalid.
    :raises ValueError: if a choice has no tokens.
    """
    request = msgspec.json.decode(body, type=_DerenderBody)
    choices: list[dict[str, Any]] = []
    for choice in request.generate_response.choices:
        if not choice.token_ids:
            raise ValueError(f"choice {choice.index} has empty or null token_ids")
        text = decoded(choice.token_ids)
        offered = bool(request.chat_request and request.chat_request.tools)
        content, calls = split_calls(text) if offered else (text, [])
        message = {"role": "assistant", "content": content or None, "reasoning": None, "tool_calls": calls}
        choices.append({"index": choice.index, "message": message, "finish_reason": choice.finish_reason})
    return {"id": "derender", "object": "chat.completion", "model": "fake", "choices": choices}


def split_calls(text: str) -> tuple[str, list[FakeToolCall]]:
    """Split an answer into its text and its tool calls; if one call is invalid, all of it is text."""
    calls: list[FakeToolCall] = []
    try:
        for number, written in enumerate(_CALLS.findall(text)):
            call = msgspec.json.decode(written, type=dict[str, Any])
            calls.append(FakeToolCall.of(f"fake_{number}", str(call["name"]), _json(call["arguments"])))
    except (msgspec.MsgspecError, LookupError):
        return text, []
    return (text.partition("<tool_call>")[0].removesuffix("\n"), calls) if calls else (text, [])


def read_ids(ids: Sequence[int]) -> PromptBody:
    """Return the conversation that was rendered to these tokens."""
    body: dict[str, Any] = {"messages": []}
    messages = _MESSAGE.findall(decoded(ids))
    for index, (role, text) in enumerate(messages):
        if role == "assistant" and index == len(messages) - 1:
            break
        reply = _REPLY.match(text) if role == "user" else None
        tools = _TOOLS.search(text) if role == "system" else None
        if tools:
            listed = [msgspec.json.decode(line) for line in tools[1].splitlines()]
            body["tools"] = [{"function": function} for function in listed]
            text = text[: tools.start()]
        if reply:
            body["messages"].append({"role": "tool", "content": reply[1]})
        elif role == "assistant":
            content, calls = split_calls(text)
            body["messages"].append({"role": role, "content": content, "tool_calls": calls})
        elif text or not tools:
            body["messages"].append({"role": role, "content": text})
    return msgspec.convert(msgspec.to_builtins(body), PromptBody)


def _message(role: str, text: str) -> list[int]:
    return [OPEN, *encoded(f"{role}\n{text}"), CLOSE, *encoded("\n")]


def _call_of(call: FakeToolCall) -> dict[str, Any]:
    try:
        arguments: Any = msgspec.json.decode(call.function.arguments or "{}")
    except msgspec.MsgspecError:
        arguments = call.function.arguments
    return {"name": call.function.name, "arguments": arguments}


def _ended(text: str, params: _SamplingParameters) -> FakeSample:
    stops = [params.stop] if isinstance(params.stop, str) else params.stop or []
    stops_found = [(text.index(stop), stop) for stop in stops if stop and stop in text]
    if stops_found:
        index, stop = min(stops_found)
        sample = FakeSample(encoded(text[:index] + stop), text[:index], "stop", stop)
    else:
        sample = FakeSample([*encoded(text), CLOSE], text)
    most = _MAX_TOKENS if params.max_tokens is None else params.max_tokens
    if len(sample.ids) > most:
        ids = sample.ids[:most]
        return FakeSample(ids, bytes(id for id in ids if id < OPEN).decode(errors="replace"), "length")
    return sample


def _mixed(*numbers: int) -> int:
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**64
    return mixed >> 8


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def events_of(sample: FakeSample, request: GenerateBody, version: str) -> list[bytes]:
    """Return an answer as server-sent events."""
    whole = sample.choice(0, version)
    events: list[bytes] = []
    shown = 0
    for start in range(0, len(sample.ids), 16):
        stop = start + 16
        last = stop >= len(sample.ids)
        decoded_chars = (
            len(sample.text)
            if last
            else len(bytes(id for id in sample.ids[:stop] if id < OPEN).decode(errors="ignore"))
        )
        text = sample.text[shown : max(shown, min(decoded_chars, len(sample.text)))]
        shown += len(text)
        choice = {
            **whole,
            "text": text,
            "token_ids": sample.ids[start:stop],
            "logprobs": {"content": whole["logprobs"]["content"][start:stop]},
            "finish_reason": sample.finish if last else None,
            "weight_versions": whole["weight_versions"] if last else None,
        }
        head = {} if start else {"prompt_token_ids": request.token_ids}
        events.append(b"data: " + msgspec.json.encode({**head, "choices": [choice]}) + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]


def tokens_of_chat(prompt: Prompt, text: str, calls: Sequence[FakeToolCall]) -> tuple[list[int], list[int]]:
    """Return prompt and sampled tokens of an answer of the chat API."""
    return rendered_ids(prompt.body), [*encoded(answer_text(text, calls)), CLOSE]
