"""Answers of the Responses API: one JSON body, or its events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from agentflow.gateway._conversation import arguments_text
from agentflow.gateway._dialect import Arrival, cached_tokens, encode, event, total_usage, unsent
from agentflow.models import Completion, ToolCall


class ResponseTool(Struct, frozen=True):
    """A tool as the client knows it."""

    name: str
    namespace: str = ""
    custom: bool = False
    """Its input is text, not an object."""


class ResponseFields(Struct, frozen=True, kw_only=True):
    """Fields of a request that its response repeats."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    previous_response_id: str | None
    temperature: float | None
    format: object
    tool_choice: object
    tools: list[dict[str, Any]] | None
    top_p: float | None


def response_id(answer: str, tag: str, instructed: bool) -> str:
    """Return the id of a response. It tells if the first message is instructions, which do not apply to later requests."""
    return f"resp_{tag}_{answer}{'_i' if instructed else ''}"


class ResponsesReply:
    """Writes the answer to one request."""

    ping = b": ping\n\n"

    def __init__(self, given: ResponseFields, arrival: Arrival, known: Mapping[str, ResponseTool]) -> None:
        """Store the request.

        :param known: tools by the names that the model sees.
        """
        self._given = given
        self._arrival = arrival
        self._known = known
        self._answer = ""
        self._sent = ""
        self._number = 0

    def body(self, answers: Sequence[Completion[None]]) -> bytes:
        """Return the body of a response without events."""
        self._answer = answers[0].id
        return encode(self._finished(answers))

    def opening(self, answer: str) -> Iterator[bytes]:
        """Yield the first events."""
        self._answer = answer
        response = self._response("in_progress", [])
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def piece(self, text: str) -> Iterator[bytes]:
        """Yield the events of a piece of text."""
        place = {"item_id": f"msg_{self._answer}", "output_index": 0, "content_index": 0}
        if not self._sent:
            yield from self._begin(0, self._message("", "in_progress"), _output_text(""))
        self._sent += text
        yield self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        """Yield all events that were not sent yet."""
        answer, finished = answers[0], self._finished(answers)
        rest = unsent(answer, self._sent)
        for index, item in enumerate(finished["output"]):
            place = {"item_id": item["id"], "output_index": index}
            match item["type"]:
                case "reasoning":
                    thought = {"type": "reasoning_text", "text": answer.reasoning}
                    yield from self._begin(index, {**item, "content": []}, {**thought, "text": ""})
                    at = {**place, "content_index": 0}
                    yield self._event("response.reasoning_text.delta", **at, delta=answer.reasoning)
                    yield self._event("response.reasoning_text.done", **at, text=answer.reasoning)
                    yield self._event("response.content_part.done", **at, part=thought)
                case "message":
                    if not self._sent:
                        yield from self._begin(index, self._message("", "in_progress"), _output_text(""))
                    at = {**place, "content_index": 0}
                    if rest:
                        yield self._event("response.output_text.delta", **at, delta=rest, logprobs=[])
                    yield self._event("response.output_text.done", **at, text=answer.text, logprobs=[])
                    yield self._event("response.content_part.done", **at, part=_output_text(answer.text))
                case "custom_tool_call":
                    yield from self._begin(index, {**item, "input": "", "status": "in_progress"})
                    name = "response.custom_tool_call_input"
                    yield self._event(f"{name}.delta", **place, delta=item["input"])
                    yield self._event(f"{name}.done", **place, input=item["input"])
                case _:
                    yield from self._begin(index, {**item, "arguments": "", "status": "in_progress"})
                    name, written = "response.function_call_arguments", item["arguments"]
                    yield self._event(f"{name}.delta", **place, delta=written)
                    yield self._event(f"{name}.done", **place, name=item["name"], arguments=written)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{finished['status']}", response=finished)

    def _begin(self, index: int, item: dict[str, Any], part: dict[str, Any] | None = None) -> Iterator[bytes]:
        empty: dict[str, Any] = {**item, "content": []} if part is not None else item
        yield self._event("response.output_item.added", output_index=index, item=empty)
        if part is not None:
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            yield self._event("response.content_part.added", **place, part=part)

    def _event(self, name: str, /, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": name, "sequence_number": number, **fields}, name)

    def _finished(self, answers: Sequence[Completion[None]]) -> dict[str, Any]:
        answer = answers[0]
        cut = answer.finish == "length"
        response = self._response("incomplete" if cut else "completed", list(self._output(answer)))
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        used = total_usage(answers)
        response["usage"] = {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens(answers), "cache_write_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt_tokens + used.completion_tokens,
        }
        return response

    def _output(self, answer: Completion[None]) -> Iterator[dict[str, Any]]:
        status = "incomplete" if answer.finish == "length" else "completed"
        if answer.reasoning:
            thoughts = [{"type": "reasoning_text", "text": answer.reasoning}]
            yield {"type": "reasoning", "id": f"rs_{answer.id}", "summary": [], "content": thoughts}
        if answer.text or not answer.calls:
            yield self._message(answer.text, status)
        for call in answer.calls:
            yield self._call(call, status)

    def _message(self, text: str, status: str) -> dict[str, Any]:
        head = {"type": "message", "id": f"msg_{self._answer}", "role": "assistant", "status": status}
        return {**head, "content": [_output_text(text)]}

    def _call(self, call: ToolCall, status: str) -> dict[str, Any]:
        tool = self._known.get(call.name, ResponseTool(call.name))
        space = {"namespace": tool.namespace} if tool.namespace else {}
        head = {"call_id": call.id, "name": tool.name, **space, "status": status}
        if tool.custom:
            given = call.arguments if call.arguments is not None else {}
            text = given.get("input")
            written = text if isinstance(text, str) else arguments_text(call)
            return {"type": "custom_tool_call", "id": f"ctc_{call.id}", **head, "input": written}
        return {"type": "function_call", "id": f"fc_{call.id}", **head, "arguments": arguments_text(call)}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        given = self._given
        return {
            "id": response_id(self._answer, self._arrival.tag, bool(given.instructions)),
            "object": "response",
            "created_at": self._arrival.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata,
            "model": given.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": given.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": given.temperature,
            "text": {"format": given.format},
            "tool_choice": given.tool_choice or "auto",
            "tools": given.tools or [] if status != "in_progress" else [],
            "top_p": given.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
