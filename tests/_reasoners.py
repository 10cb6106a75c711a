"""Endpoints that behave like reasoning models: what they reject, and where they put their reasoning."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from agentflow.testing.endpoint._play import play, use_tool
from agentflow.testing.endpoint._prompt import Prompt, read_prompt

DECOY = (
    'Okay, is it <answer>a decoy</answer>? {"name": "decoy"} The final answer is a decoy. \\boxed{a decoy}\n'
    '{"working": "a decoy", "answer": "a decoy", "analysis": "a decoy", "correct": false}'
)
"""Reasoning that every parser would take for an answer."""
ANSWERS = {
    "When was Needle Light built?": "1834",
    "Who was the designer of Needle Light?": "Theda Marrow",
    "Who discovered the Lantern Comet?": "Nobody",
    "When was the Lantern Feast first held?": "1707",
}
"""Answers of the model; the third one is wrong."""
_JUDGED = re.compile(r"<references>\n(.*)\n</references>.*<answer>\n(.*)\n</answer>", re.DOTALL)


class Reasoner(NamedTuple):
    """Behaviour of one model."""

    rejected: dict[str, str] = {}  # noqa: RUF012 - a constant
    """Rejected parameter -> code of the error."""
    formats: tuple[str, ...] = ("json_schema", "json_object", "text")
    """Accepted types of `response_format`."""
    field: str = ""
    """Field of the message with the reasoning; empty: it is in the text."""
    opened: bool = False
    """The text has the opening tag, too."""
    hidden: bool = False
    """The reasoning is not returned."""
    tools: bool = True
    """It accepts tools."""
    labelled: bool = False
    """Its planner writes labels, whatever `response_format` says."""


REASONERS = {
    "o3-mini": Reasoner(
        {"max_tokens": "unsupported_parameter", "temperature": "unsupported_parameter"}, hidden=True
    ),
    "gpt-5": Reasoner(
        {"max_tokens": "unsupported_parameter", "temperature": "unsupported_value"}, hidden=True
    ),
    "deepseek-r1": Reasoner(formats=("text",)),
    "qwen3": Reasoner(formats=("json_object", "text"), opened=True),
    "vllm": Reasoner(field="reasoning_content"),
    "vllm-new": Reasoner(field="reasoning"),
}
"""Models by name."""
OTHERS = {
    "agentflow-planner-7b": Reasoner(hidden=True, labelled=True),
    "deepseek-reasoner": Reasoner(formats=("json_object", "text"), field="reasoning_content"),
    "deepseek-r1:7b": Reasoner(formats=("text",), opened=True, tools=False),
}
"""A released planner of AgentFlow, and two deployments of DeepSeek-R1, the second without tools."""


class ReasoningEndpoint:
    """Endpoint of one model; counts what it was asked and rejected."""

    def __init__(self, name: str) -> None:
        self.url = ""
        self.answered = 0
        self.rejected = 0
        self.careless = 0
        """Number of steps that its planner begins with, without a label."""
        self.bodies: list[dict[str, Any]] = []
        self._name = name
        self._model = {**REASONERS, **OTHERS}[name]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        data = await request.read()
        body = msgspec.json.decode(data, type=dict[str, Any])
        self.bodies.append(body)
        if (refusal := self._refusal(body)) is not None:
            self.rejected += 1
            return web.json_response({"error": refusal}, status=400)
        self.answered += 1
        return web.json_response(self._says(read_prompt(data)))

    def _refusal(self, body: dict[str, Any]) -> dict[str, Any] | None:
        found = next((name for name in self._model.rejected if name in body), None)
        if found is not None:
            code = self._model.rejected[found]
            message = f"Unsupported parameter: '{found}' is not supported with this model."
            if found == "max_tokens":
                message += " Use 'max_completion_tokens' instead."
            if code == "unsupported_value":
                value = f"does not support {body[found]} with this model."
                message = f"Unsupported value: '{found}' {value} Only the default (1) value is supported."
            return {"message": message, "type": "invalid_request_error", "param": found, "code": code}
        if "tools" in body and not self._model.tools:
            message = f"{self._name} does not support tools"
            return {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        if body.get("response_format", {"type": "text"})["type"] not in self._model.formats:
            message = "This response_format type is unavailable now"
            return {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return None

    def _says(self, prompt: Prompt) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if prompt.tools and not prompt.turns:
            name, arguments = use_tool(prompt)
            call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
            message["tool_calls"] = [call]
        else:
            message["content"] = answer_to(prompt)
        model = self._model
        if model.labelled and "**Tool Name:**" in prompt.text:
            message["content"] = "I would search." if self.careless > 0 else labelled_step(prompt)
            self.careless -= 1
        if model.field:
            message[model.field] = DECOY
        elif not model.hidden:
            begin = "<think>\n" if model.opened else ""
            message["content"] = f"{begin}{DECOY}\n</think>\n\n{message['content']}"
        usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
        return {
            "model": self._name,
            "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": usage,
        }


def labelled_step(prompt: Prompt) -> str:
    """Return a step as a released planner writes it."""
    question = next(question for question in ANSWERS if question in prompt.text)
    return (
        f"1. **Justification:** The search tool fits the query best.\n2. **Context:** {question}\n"
        f"3. **Sub-Goal:** Search for: {question}\n4. **Tool Name:** Rag_Search"
    )


def answer_to(prompt: Prompt) -> str:
    """Return the answer of the model to a prompt of any role."""
    right = next((answer for question, answer in ANSWERS.items() if question in prompt.text), "unknown")
    match prompt.name:
        case "solution":
            answer: object = {"working": f"It is {right}.", "answer": right}
        case "opinion":
            found = _JUDGED.search(prompt.text)
            assert found is not None
            answer = {"analysis": "", "correct": found[1] in found[2] and "decoy" not in found[2]}
        case "":
            return right
        case _:
            return play(prompt)
    return msgspec.json.encode(answer).decode()


@asynccontextmanager
async def reasoning_endpoint(name: str) -> AsyncGenerator[ReasoningEndpoint]:
    """Serve a model at any free port."""
    endpoint = ReasoningEndpoint(name)
    runner = web.ServerRunner(web.Server(endpoint.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address: tuple[str, int] = runner.addresses[0]
    endpoint.url = f"http://127.0.0.1:{address[1]}/v1"
    try:
        yield endpoint
    finally:
        await runner.cleanup()
