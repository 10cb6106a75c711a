"""Images in conversations: their forms, their limits, their record, and what models and trainings get."""

import gc
import json
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

from agentflow.gateway import (
    AgentConversations,
    EpisodeOutcome,
    EpisodeStore,
    ExactAnswerer,
    GatewayCall,
    GatewayError,
    GatewaySettings,
    PlainAnswerer,
    PromptOrigin,
    RecordedCall,
    RecordingAnswerer,
    recorded_calls,
    recorded_image,
)
from agentflow.gateway import _dialect as gateway_dialect
from agentflow.gateway._images import image_size, mime_of_image, with_bytes
from agentflow.gateway._server import LARGE_BYTES, ModelRoutes, gateway_app
from agentflow.http_server import serving
from agentflow.models import ImagePart, Message, ModelConnection, ModelSettings, TextPart, ToolReply
from agentflow.trace import Blob
from agentflow.tuner._gateway_rollout import UnusableOutcome, episode_samples
from tests.agentflow.gateway._images import (
    MIMES,
    chat_image,
    data_url,
    image,
    messages_image,
    png_chunk,
    responses_image,
)
from tests.agentflow.gateway._registry import OWNER, EchoModel, offers, registry_at, served
from tests.agentflow.gateway._scripted_calls import (
    MODEL,
    ScriptedCalls,
    answer,
    raw_client,
    scripted_server,
)

PNG, JPEG = image(), image("JPEG", (40, 30))
PICTURE, PHOTO = data_url(PNG), data_url(JPEG, "image/jpeg")
LOOK = {"name": "look", "arguments": "{}"}


def bodies() -> dict[str, dict[str, Any]]:
    """Return a conversation with an image of the user and one of a tool, in each API."""
    text = "What is this?"
    called = {"type": "function_call", "call_id": "a", **LOOK}
    shown = [{"type": "text", "text": "here"}, messages_image(PHOTO)]
    return {
        "/v1/chat/completions": {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": text}, chat_image(PICTURE)]},
                {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": LOOK}]},
                {
                    "role": "tool",
                    "tool_call_id": "a",
                    "content": [{"type": "text", "text": "here"}, chat_image(PHOTO)],
                },
            ]
        },
        "/v1/responses": {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": text}, responses_image(PICTURE)]},
                called,
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [{"type": "input_text", "text": "here"}, responses_image(PHOTO)],
                },
            ]
        },
        "/v1/messages": {
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": text}, messages_image(PICTURE)]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": shown}]},
            ],
        },
    }  # fmt: skip


@pytest.mark.promise("gateway:images:apis")
async def test_equal_conversations_with_images_give_the_same_call_in_every_api() -> None:
    calls = ScriptedCalls([answer() for _ in bodies()])
    async with scripted_server(calls) as url, raw_client(url) as client:
        for path, body in bodies().items():
            response = await client.post(path, json={"model": MODEL, **body})
            assert response.status_code == 200, response.text
        counted = await client.post(
            "/v1/messages/count_tokens", json={"model": MODEL, **bodies()["/v1/messages"]}
        )
        assert counted.json() == {"input_tokens": 42}
    png, jpeg = Blob.of(PNG, "image/png"), Blob.of(JPEG, "image/jpeg")
    asked, _, result = calls.calls[0].messages
    assert asked.parts == (TextPart("What is this?"), ImagePart(png.hash.encode(), "image/png"))
    [reply] = result.parts
    assert isinstance(reply, ToolReply)
    assert reply.parts == (TextPart("here"), ImagePart(jpeg.hash.encode(), "image/jpeg"))
    for call in calls.calls:
        assert call.images == {png.hash: PNG, jpeg.hash: JPEG}
        assert (call.messages[0], call.messages[2]) == (asked, result)


@pytest.mark.promise("gateway:images:bounds")
@given(
    format=some.sampled_from(sorted(MIMES)),
    size=some.tuples(some.integers(1, 70), some.integers(1, 70)),
    flags=some.tuples(some.booleans(), some.booleans()),
    cut=some.integers(0, 200),
)
def test_the_header_of_an_image_tells_the_size_that_a_decoder_finds(
    format: str, size: tuple[int, int], flags: tuple[bool, bool], cut: int
) -> None:
    out = BytesIO()
    first, second = flags
    mode = "RGBA" if first and format in ("PNG", "WEBP") else "RGB"
    more: dict[str, Any] = {"PNG": {"interlace": second}, "JPEG": {"progressive": second}}.get(format, {})
    more |= {"lossless": second} if format == "WEBP" else {}
    frames = [Image.new(mode, size, color) for color in ("red", "blue")]
    if format == "GIF" or (format == "WEBP" and first):
        more |= {"save_all": True, "append_images": frames[1:], "comment": b"x" * 300}
    frames[0].save(out, format, **more)
    data = out.getvalue()
    assert (mime_of_image(data), image_size(data)) == (MIMES[format], size)
    try:
        assert image_size(data[:cut]) == size
    except ValueError as error:
        assert "header" in str(error)


@pytest.mark.promise("gateway:images:bounds")
async def test_images_of_a_large_request_are_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    real = image_size

    def size(data: bytes) -> tuple[int, int]:
        threads.append(threading.current_thread())
        return real(data)

    monkeypatch.setattr(gateway_dialect, "image_size", size)
    noise = Image.effect_noise((500, 500), 90)
    noise.save(out := BytesIO(), "PNG")
    assert len(out.getvalue()) > LARGE_BYTES
    calls = ScriptedCalls([answer()])
    content = [chat_image(data_url(out.getvalue()))]
    async with scripted_server(calls) as url, raw_client(url) as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert calls.calls[0].large
    assert threading.main_thread() not in threads
    assert len(threads) == 1


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.mark.promise("gateway:images:record")
async def test_a_growing_conversation_stores_each_image_once_beside_the_calls(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "to "}
    async with registry_at(tmp_path) as registry, served(registry, GatewaySettings()) as url:
        await registry.slots.offer(offers(size=2))
        for offer in offers(size=2):
            begun = await registry.begin(OWNER)
            assert begun is not None
            conversation = [user(chat_image(PICTURE), chat_image(PICTURE))]
            async with raw_client(url, Authorization=f"Bearer {begun.keys['']}") as client:
                for _ in range(3):
                    body = {"model": "policy", "messages": conversation}
                    response = await client.post("/v1/chat/completions", json=body)
                    assert response.status_code == 200, response.text
                    conversation += [said, user(chat_image(PHOTO))]
            await registry.end(OWNER, offer.id, 1, EpisodeOutcome(reward=1.0))
        calls = recorded_calls(tmp_path, "1/1")
    png, jpeg = (Blob.of(data, "").hash for data in (PNG, JPEG))
    assert [len(call.messages) for call in calls] == [1, 1, 1]
    assert recorded_image(tmp_path, png) == PNG
    assert recorded_image(tmp_path, jpeg) == JPEG
    with pytest.raises(KeyError):
        recorded_image(tmp_path, "0" * 64)
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as journal:
        assert dict(journal.execute("SELECT hash, data FROM images")) == {png: PNG, jpeg: JPEG}
        stored = b"".join(body for (body,) in journal.execute("SELECT body FROM calls"))
    assert PNG not in stored
    assert stored.count(png.encode()) >= 4


@pytest.mark.promise("gateway:images:record")
async def test_a_response_continues_a_conversation_with_its_images_within_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[GatewayCall] = []
    model = EchoModel()
    real = model.answer

    async def watched(call: GatewayCall, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        seen.append(call)
        return await real(call, *rest, **more)

    monkeypatch.setattr(model, "answer", watched)
    async with (
        registry_at(tmp_path, model=model) as registry,
        serving(gateway_app(ModelRoutes(registry, max_body=300_000))) as url,
    ):
        await registry.slots.offer(offers(size=1))
        begun = await registry.begin(OWNER)
        assert begun is not None
        async with raw_client(url, Authorization=f"Bearer {begun.keys['']}") as client:
            last: dict[str, str] = {}
            for shown in (PICTURE, PHOTO):
                asked = [user(responses_image(shown))]
                response = await client.post(
                    "/v1/responses", json={"model": "policy", "input": asked, **last}
                )
                last = {"previous_response_id": response.json()["id"]}
            begin = last
            large = [
                user(responses_image(data_url(PNG[:-12] + png_chunk(b"teXt", bytes(100_000)) + PNG[-12:])))
            ]
            for _ in range(4):
                response = await client.post(
                    "/v1/responses", json={"model": "policy", "input": large, **last}
                )
                if response.status_code == 200:
                    last = {"previous_response_id": response.json()["id"]}
            bytes_refused = response.json()["error"]
            monkeypatch.setattr(gateway_dialect, "MAX_IMAGES", 2)
            response = await client.post("/v1/responses", json={"model": "policy", "input": asked, **begin})
            refused = response.json()["error"]
    assert set(seen[1].images.values()) == {PNG, JPEG}
    assert (response.status_code, refused["code"]) == (413, "too_large")
    assert "images of a conversation: 3, at most 2" in refused["message"]
    assert "bytes of earlier images: 300," in bytes_refused["message"], "the same image, three times"
    assert len(seen) == 5


@pytest.mark.promise("gateway:images:record")
async def test_images_count_in_the_record_of_an_episode(tmp_path: Path) -> None:
    settings = GatewaySettings.model_validate({"limits": {"recorded_bytes": len(JPEG) + 600}})
    async with registry_at(tmp_path, settings) as registry, served(registry, settings) as url:
        await registry.slots.offer(offers(size=1))
        begun = await registry.begin(OWNER)
        assert begun is not None
        codes: list[int] = []
        async with raw_client(url, Authorization=f"Bearer {begun.keys['']}") as client:
            for shade in range(6):
                shown = data_url(image("JPEG", (40, 30), shade), "image/jpeg")
                body = {"model": "policy", "messages": [user(chat_image(shown))]}
                codes.append((await client.post("/v1/chat/completions", json=body)).status_code)
    assert codes[0] == 200
    assert codes[-1] == 403


@pytest.mark.promise("gateway:images:record")
async def test_a_journal_without_images_is_continued(tmp_path: Path) -> None:
    async with EpisodeStore(tmp_path) as store:
        await store.add_call(1, 1, b"body")
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as journal:
        journal.executescript("DROP TABLE images; PRAGMA user_version = 1;")
    for missing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(KeyError):
            recorded_image(missing, "a")
    async with EpisodeStore(tmp_path) as store:
        await store.add_call(1, 2, b"next", {"a": b"image"})
        assert await store.images(["a", "b"]) == {"a": b"image"}
        assert await store.calls(1) == [b"body", b"next"]


@pytest.mark.promise("gateway:images:record")
async def test_what_is_no_image_in_the_journal_of_a_stranger_is_missing(tmp_path: Path) -> None:
    async with EpisodeStore(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as journal:
        rows = "('text', 'a'), ('number', 7), ('large', zeroblob(6000000)), ('image', x'00')"
        journal.execute(f"INSERT INTO images VALUES {rows}")
        journal.commit()
    assert recorded_image(tmp_path, "image") == b"\0"
    for hash in ("text", "number", "large"):
        with pytest.raises(KeyError):
            recorded_image(tmp_path, hash)


@asynccontextmanager
async def engine(asked: list[dict[str, Any]]) -> AsyncGenerator[ModelConnection]:
    """Serve the chat API of an engine; yield a connection to it."""

    async def chat(request: web.Request) -> web.Response:
        asked.append(await request.json())
        message = {"role": "assistant", "content": "a red square"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    async with serving(app) as url:
        settings = ModelSettings(name="sees", base_url=f"{url}/v1", max_attempts=1)
        async with ModelConnection(settings, environment={}) as connection:
            yield connection


def call_with_image() -> GatewayCall:
    hash = Blob.of(PNG, "image/png").hash
    part = ImagePart(hash.encode(), "image/png")
    result = ToolReply("a", "look", (TextPart("here"), part))
    messages = (Message("user", (TextPart("What is this?"), part)), Message("user", (result,)))
    return GatewayCall(dialect="chat", messages=messages, images={hash: PNG})


async def asked_of(answerer: Any) -> RecordedCall:  # noqa: ANN401
    [(_, record)] = await answerer.answer(
        call_with_image(), AgentConversations(), ["c1"], seed="run/1", temperature=0.5
    )
    return record


@pytest.mark.promise("gateway:images:models")
async def test_a_model_gets_the_bytes_of_images_and_a_trained_one_is_recorded_without_tokens() -> None:
    asked: list[dict[str, Any]] = []
    async with engine(asked) as connection:
        by_messages = RecordingAnswerer(connection)
        exact = await asked_of(ExactAnswerer(connection.engine, by_messages))
        recorded = await asked_of(by_messages)
        plain = await asked_of(PlainAnswerer(connection))
        counted = await ExactAnswerer(connection.engine, by_messages).count(call_with_image())
        for answerer in (ExactAnswerer(connection.engine), PlainAnswerer(connection, vision=False)):
            with pytest.raises(GatewayError, match="this model reads no images"):
                await asked_of(answerer)
    shown = {"type": "image_url", "image_url": {"url": PICTURE}}
    for body in asked:
        assert [part for message in body["messages"] for part in message["content"] if part == shown] == [
            shown
        ] * 2
        assert "return_token_ids" not in body
    assert [body.get("temperature") for body in asked] == [0.5, 0.5, None]
    origins = [(record.origin, record.tokens) for record in (exact, recorded, plain)]
    assert origins == [(PromptOrigin.IMAGES, None), (PromptOrigin.IMAGES, None), (PromptOrigin.OPENING, None)]
    assert PNG not in msgspec.msgpack.encode(exact)
    assert 0 < counted < 100


@pytest.mark.promise("gateway:images:bounds")
def test_images_are_freed_with_the_messages_that_have_them() -> None:
    call = call_with_image()
    [data] = call.images.values()
    gc.disable()
    try:
        count = sys.getrefcount(data)
        messages = with_bytes(call.messages, call.images)
        assert sys.getrefcount(data) == count + 2
        del messages
        assert sys.getrefcount(data) == count, "a cycle would keep them until the next collection"
    finally:
        gc.enable()


@pytest.mark.promise("gateway:images:training")
async def test_an_episode_whose_trained_agent_saw_images_is_left_out_with_the_reason() -> None:
    async with engine([]) as connection:
        record = await asked_of(RecordingAnswerer(connection))
    with pytest.raises(UnusableOutcome) as refused:
        episode_samples([record], EpisodeOutcome(reward=1.0), group="1", id="1/0", temperature=1.0)
    assert str(refused.value).startswith(
        "a trained agent was sent images, and their exact tokens are not known; "
    )
    assert "\n" not in str(refused.value)
    assert json.dumps(record.origin) == '"images"'
