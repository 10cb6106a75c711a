"""Reading for a goal by a vision model."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentflow.errors import ToolFailure
from mcp_servers import ToolTable
from mcp_servers.document import DocumentBackend, DocumentSettings
from mcp_servers.document._backend import VisionModel
from tests.mcp_servers.document._reading import images, reader_of, shown_text


class Endpoint:
    """Recorded requests and prepared responses."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.statuses: list[int] = []
        self.body: dict[str, object] = {"choices": [{"message": {"content": "seventeen, on page 2"}}]}

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        status = self.statuses.pop(0) if self.statuses else 200
        return web.json_response(self.body, status=status)


@asynccontextmanager
async def endpoint() -> AsyncGenerator[Endpoint]:
    model = Endpoint()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        await runner.cleanup()


def settings_of(url: str, **more: object) -> DocumentSettings:
    return DocumentSettings.model_validate(
        {"vlm_model": "sees", "vlm_api_url": url, "vlm_api_key": "k", **more}
    )


@pytest.mark.promise("document:vision")
async def test_a_model_that_sees_is_given_the_text_and_the_pages_and_answers_the_goal(
    shelf: Path, tmp_path: Path
) -> None:
    async with endpoint() as model:
        settings = {"file": str(shelf / "book.pdf"), "cache_dir": str(tmp_path)}
        settings |= {
            "vlm_model": "sees",
            "vlm_api_url": model.url,
            "vlm_api_key": "secret",
            "vlm_max_tokens": 99,
        }
        async with ToolTable([DocumentBackend()], settings={"document": settings}) as table:
            reader = await reader_of(table)
            result = await reader.call("read", pages="2-3", goal="How many ships?", max_image_num=1)
            assert result.ok, result.error
            page = images(await reader.call("page_image", page=2))
    assert result.data["answer"] == "seventeen, on page 2"
    assert shown_text(result).startswith("seventeen, on page 2\n\nbook.pdf [2]")
    assert model.keys == ["Bearer secret"]
    (request,) = model.requests
    assert (request["model"], request["max_tokens"]) == ("sees", 99)
    text, picture = request["messages"][0]["content"]
    assert "Goal: How many ships?" in text["text"]
    assert "Line 3 of page 2" in text["text"]
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == page[0] == images(result)[0]


@pytest.mark.promise("document:vision")
async def test_a_model_that_is_busy_is_asked_again_and_one_that_fails_is_a_typed_failure() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with endpoint() as model:
        model.statuses = [429, 503]
        assert await VisionModel(settings_of(model.url), pause).read("x", "y", []) == "seventeen, on page 2"
        assert pauses == [1.0, 2.0]
        model.statuses = [503] * 9
        with pytest.raises(ToolFailure, match="status 503"):
            await VisionModel(settings_of(model.url, vlm_retry_max_attempts=3), pause).read("x", "y", [])
        assert len(model.requests) == 6
        model.statuses = [401]
        with pytest.raises(ToolFailure, match="status 401"):
            await VisionModel(settings_of(model.url), pause).read("x", "y", [])
        model.statuses, model.body = [], {"choices": "none"}
        with pytest.raises(ToolFailure, match="no answer") as failed:
            await VisionModel(settings_of(model.url), pause).read("x", "y", [])
        assert len(model.requests) == 8
        assert "\n" not in failed.value.message


@pytest.mark.promise("document:vision")
async def test_a_reasoning_model_gets_its_limit_under_another_name_and_its_reasoning_is_dropped() -> None:
    async with endpoint() as model:
        model.statuses = [400]
        model.body = {
            "error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."},
            "choices": [{"message": {"content": "<think>16?</think>\nseventeen"}}],
        }

        async def pause(seconds: float) -> None:
            assert seconds

        assert await VisionModel(settings_of(model.url), pause).read("x", "y", []) == "seventeen"
    assert [request.get("max_completion_tokens") for request in model.requests] == [
        None,
        model.requests[0]["max_tokens"],
    ]


async def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(settings_of("http://127.0.0.1:1/v1", vlm_api_key="secret"))
