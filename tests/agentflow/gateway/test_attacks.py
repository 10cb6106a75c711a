"""Requests that must be refused: foreign keys, roles, hosts, sizes, paths, headers and replays."""

import json
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp
import anyio
import pytest
from pydantic import SecretStr

from agentflow.gateway import EpisodeOutcome, GatewayClient, GatewaySettings
from tests.agentflow.gateway._registry import OWNER, offers, registry_at, served

OWNER_TOKEN, WORKER_TOKEN, VIEWER_TOKEN = (
    f"{role}-token-of-this-test" for role in ("owner", "worker", "viewer")
)
SETTINGS = GatewaySettings(
    token=SecretStr(OWNER_TOKEN), worker_token=SecretStr(WORKER_TOKEN), viewer_token=SecretStr(VIEWER_TOKEN)
)
CHAT = "/v1/chat/completions"
ASK = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


class Attack(NamedTuple):
    """One request; names in braces stand for episodes, keys and clients of the test."""

    name: str
    status: int
    path: str
    body: Any = None
    method: str = "POST"
    token: str = WORKER_TOKEN
    client: str = "{me}"
    headers: Mapping[str, str] = MappingProxyType({})


def end(**more: object) -> dict[str, object]:
    """Return the body of an end."""
    return {"attempt": 1, "end_id": "e", "reward": 1.0, **more}


ATTACKS = [
    Attack("no token", 401, "/swarm/episodes", {}, token=""),
    Attack("wrong token", 401, "/swarm/episodes", {}, token="x" * 40),
    Attack("beginning of a token", 401, "/swarm/episodes", {}, token=OWNER_TOKEN[:-1]),
    Attack("token in the query", 401, f"/swarm/episodes?token={OWNER_TOKEN}", {}, token=""),
    Attack("another scheme", 401, "/swarm/episodes", {}, token="", headers={"Authorization": f"Basic {OWNER_TOKEN}"}),
    Attack("an episode's key as a token", 401, "/swarm/episodes", {}, token="{key}"),
    Attack("a token that is not ASCII", 401, "/swarm/status", method="GET", token="\u00fcber"),
    *(
        Attack(f"a worker at {path}", 403, path, json.loads(body), method)
        for method, path, body in (
            ("POST", "/swarm/offers", '{"offers": []}'),
            ("GET", "/swarm/ended", "null"),
            ("GET", "/swarm/episodes/{open}/calls?attempt=1", "null"),
            ("POST", "/swarm/episodes/{ended}/score", '{"attempt": 1, "outcome": {"reward": 9}}'),
            ("POST", "/swarm/use", '{"ids": ["{ended}"], "step": 1}'),
            ("POST", "/swarm/withdraw", '{"ids": ["{other}"]}'),
            ("PUT", "/swarm/version", '{"version": 9}'),
            ("PUT", "/swarm/hold", '{"held": true}'),
            ("POST", "/swarm/finish", "{}"),
        )
    ),
    Attack("a viewer begins", 403, "/swarm/episodes", {}, token=VIEWER_TOKEN),
    Attack("a viewer rewards", 403, "/swarm/episodes/{ended}/reward", {"attempt": 1, "reward": 9}, "PUT", VIEWER_TOKEN),
    Attack("the end of another's episode", 403, "/swarm/episodes/{other}/end", end()),
    Attack("the abort of another's episode", 403, "/swarm/episodes/{other}/abort", {"attempt": 1}),
    Attack("life for another's episode", 403, "/swarm/episodes/{other}/alive", {"attempt": 1}),
    Attack("another's reward", 403, "/swarm/episodes/{other_ended}/reward", {"attempt": 1, "reward": 9}, "PUT"),
    Attack("another's tokens", 403, "/swarm/episodes/{other}/tokens?attempt=1", None, "GET"),
    Attack("an end without a client", 403, "/swarm/episodes/{open}/end", end(), client=""),
    Attack("a made-up id of a client", 401, "/swarm/episodes", {}, client="c_" + "A" * 22 + "." + "B" * 43),
    Attack("another's id with a wrong code", 401, "/swarm/episodes/{other}/end", end(), client="{forged}"),
    Attack("an id that injects", 401, "/swarm/episodes", {}, client="' OR 1=1 --"),
    Attack("an end again with another reward", 409, "/swarm/episodes/{ended}/end", end(reward=5.0)),
    Attack("an end again with another name", 409, "/swarm/episodes/{ended}/end", end(end_id="f")),
    Attack("an old attempt", 410, "/swarm/episodes/{old}/end", end()),
    Attack("an attempt to come", 404, "/swarm/episodes/{open}/end", end(attempt=2)),
    Attack("a negative attempt", 400, "/swarm/episodes/{open}/end", end(attempt=-1)),
    Attack("a huge attempt", 400, "/swarm/episodes/{open}/end", end(attempt=2**70)),
    Attack("an attempt in other digits", 400, "/swarm/episodes/{open}/tokens?attempt=%D9%A1", None, "GET"),
    Attack("a reward that is no number", 400, "/swarm/episodes/{open}/end", b'{"attempt": 1, "reward": NaN}'),
    Attack("an infinite reward", 400, "/swarm/episodes/{open}/end", b'{"attempt": 1, "reward": 1e999}'),
    Attack("a reward as text", 400, "/swarm/episodes/{open}/end", end(reward="1")),
    Attack("another agent's reward", 400, "/swarm/episodes/{open}/end", end(reward={"x": 1.0})),
    Attack("an unknown field", 400, "/swarm/episodes/{open}/end", end(state="used")),
    Attack("an open episode used", 409, "/swarm/use", {"ids": ["{open}"], "step": 1}, token=OWNER_TOKEN),
    Attack("a used episode used again", 409, "/swarm/use", {"ids": ["{used}"], "step": 2}, token=OWNER_TOKEN),
    Attack("a used episode offered", 409, "/swarm/offers", {"offers": ["{offer}"]}, token=OWNER_TOKEN),
    Attack("a used episode's reward", 409, "/swarm/episodes/{used}/reward", {"attempt": 1, "reward": 9}, "PUT"),
    Attack("an unknown agent", 400, "/swarm/episodes", {"agents": ["x"]}),
    Attack("a task without an id", 400, "/swarm/episodes", {"task": {"id": "", "question": "?"}}),
    Attack("a task with a line break in its id", 400, "/swarm/episodes", {"task": {"id": "a\nb", "question": "?"}}),
    Attack("a task that can't be stored", 400, "/swarm/episodes", {"task": {"id": "a", "kwargs": {"n": 2**70}}}),
    Attack("half a character", 400, "/swarm/episodes", b'{"task": {"id": "\\ud800"}}'),
    Attack("a path upwards", 404, "/swarm/episodes/..%2F..%2Fetc%2Fpasswd/tokens?attempt=1", None, "GET"),
    Attack("a path upwards, unquoted", 404, "/swarm/episodes/../../etc/passwd", None, "GET"),
    Attack("a zero byte in a path", 404, "/swarm/episodes/a%00b/tokens?attempt=1", None, "GET"),
    Attack("a long path", 404, "/swarm/episodes/" + "a" * 4000 + "/tokens?attempt=1", None, "GET"),
    Attack("SQL in a path", 404, "/swarm/episodes/x'%20OR%20'1'='1/tokens?attempt=1", None, "GET"),
    Attack("another method", 405, "/swarm/finish", None, "GET", OWNER_TOKEN),
    Attack("a large body", 413, "/swarm/episodes", b'{"task": {"id": "' + b"a" * (1 << 20) + b'"}}'),
    Attack("a compressed body", 413, "/swarm/episodes", zlib.compress(b" " * (64 << 20)), headers={"Content-Encoding": "deflate"}),
    Attack("deep JSON", 400, "/swarm/episodes", b'{"task":' + b"[" * 40_000 + b"]" * 40_000 + b"}"),
    Attack("many values", 413, "/swarm/episodes", b'{"agents":[' + b'"",' * 100_000 + b'""]}'),
    Attack("no JSON", 400, "/swarm/episodes", b"\x80\x00\xff"),
    Attack("another host", 403, "/swarm/status", None, "GET", headers={"Host": "evil.example"}),
    Attack("another host for a model", 403, CHAT, ASK, token="{key}", headers={"Host": "evil.example"}),
    Attack("no key for a model", 401, CHAT, ASK, token=""),
    Attack("a token as a key", 401, CHAT, ASK, token=OWNER_TOKEN),
    Attack("a forged key", 401, CHAT, ASK, token="{forged_key}"),
    Attack("a key of another gateway", 401, CHAT, ASK, token="af_1_" + "A" * 43),
    Attack("a key of a huge number", 401, CHAT, ASK, token="af_" + "9" * 15 + "_" + "A" * 43),
    Attack("an expired key", 410, CHAT, ASK, token="{old_key}"),
    Attack("a key of an ended episode", 410, CHAT, ASK, token="{ended_key}"),
    Attack("a key in the query", 401, CHAT + "?key={key}", ASK, token=""),
]  # fmt: skip


def fill(value: Any, known: dict[str, str]) -> Any:  # noqa: ANN401 - any JSON
    """Fill in the episodes, keys and clients of a test."""
    if not isinstance(value, str):
        if value is None or isinstance(value, bytes):
            return value
        return json.loads(
            fill(json.dumps(value), {name: text.replace('"', "") for name, text in known.items()})
        )
    for name, text in known.items():
        value = value.replace(f"{{{name}}}", text)
    return value


@pytest.mark.promise("gateway:attacks")
async def test_every_attack_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with (
        registry_at(tmp_path, SETTINGS) as registry,
        served(registry, SETTINGS) as url,
        GatewayClient(url, WORKER_TOKEN) as me,
        GatewayClient(url, WORKER_TOKEN) as other,
        aiohttp.ClientSession() as session,
    ):
        await registry.slots.offer(offers(size=6))
        good = EpisodeOutcome(reward=1.0)
        used, ended, old, mine = [begun for _ in range(4) if (begun := await me.begin()) is not None]
        theirs, theirs_ended = [begun for _ in range(2) if (begun := await other.begin()) is not None]
        await me.end(used, good, "e")
        await me.end(ended, good, "e")
        await other.end(theirs_ended, good, "e")
        await registry.slots.use([used.episode], 1)
        await me.abort(old)
        before = registry.status()
        known = {
            "me": me.client,
            "key": mine.keys[""],
            "old_key": old.keys[""],
            "ended_key": ended.keys[""],
            "forged_key": mine.keys[""][:-4] + "AAAA",
            "forged": other.client[:-4] + "AAAA",
        }
        episodes = {
            "open": mine,
            "other": theirs,
            "ended": ended,
            "used": used,
            "old": old,
            "other_ended": theirs_ended,
        }
        ids = {name: begun.episode for name, begun in episodes.items()}
        quoted = {name: quote(id, safe="") for name, id in ids.items()}
        failed: list[str] = []
        for attack in ATTACKS:
            headers = {"Content-Type": "application/json"}
            if token := fill(attack.token, known):
                headers["Authorization"] = f"Bearer {token}"
            if client := fill(attack.client, known):
                headers["X-AgentFlow-Client"] = client
            body = fill(attack.body, known | ids)
            if body == {"offers": ["{offer}"]}:
                body = {
                    "offers": [
                        {"id": used.episode, "group": "1", "task": {"index": 0, "id": "1", "question": "?"}}
                    ]
                }
            sent: dict[str, Any] = {"data": BytesIO(body)} if isinstance(body, bytes) else {"json": body}
            path = fill(attack.path, known | quoted)
            async with session.request(
                attack.method, url + path, headers={**headers, **attack.headers}, **sent
            ) as answer:
                text = await answer.text()
            if answer.status != attack.status or "Traceback" in text or "error" not in text:
                failed.append(f"{attack.name}: {answer.status} instead of {attack.status}: {text[:200]}")
        assert failed == []
        assert registry.status() == before
        registry.find(mine.keys[""])
        assert (await registry.end(OWNER, theirs.episode, 1, good)).calls == 0


@pytest.mark.promise("gateway:attacks")
@pytest.mark.parametrize(
    "head",
    [
        f"Content-Length: 2\r\nTransfer-Encoding: chunked\r\nAuthorization: Bearer {WORKER_TOKEN}\r\n",
        f"Authorization: Bearer wrong\r\nAuthorization: Bearer {WORKER_TOKEN}\r\n",
        f"Authorization : Bearer {WORKER_TOKEN}\r\n",
        f"Authorization: Bearer x\x00{WORKER_TOKEN}\r\n",
        f"Host: evil.example\r\nAuthorization: Bearer {WORKER_TOKEN}\r\n",
        "X-Padding: " + "a" * 100_000 + f"\r\nAuthorization: Bearer {WORKER_TOKEN}\r\n",
    ],
    ids=["two lengths", "two tokens", "space", "zero byte", "two hosts", "large header"],
)
async def test_tricks_with_headers_are_refused(tmp_path: Path, head: str) -> None:
    async with registry_at(tmp_path, SETTINGS) as registry, served(registry, SETTINGS) as url:
        await registry.slots.offer(offers(size=1))
        port = urlsplit(url).port or 0
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            host = "" if head.startswith("Host") else "Host: 127.0.0.1\r\n"
            await stream.send(f"POST /swarm/episodes HTTP/1.1\r\n{host}{head}\r\n{{}}".encode("latin-1"))
            status = int((await stream.receive()).split(b" ", 2)[1])
        assert 400 <= status < 500
        assert registry.status().states == {"offered": 1}


@pytest.mark.promise("gateway:attacks")
async def test_only_digests_of_secrets_are_on_disk_and_other_users_read_nothing(tmp_path: Path) -> None:
    async with registry_at(tmp_path, SETTINGS) as registry:
        await registry.slots.offer(offers(size=1))
        begun = await registry.begin(OWNER)
        assert begun is not None
    files = list(Path(tmp_path).iterdir())  # noqa: ASYNC240 - a few small files
    stored = b"".join(file.read_bytes() for file in files)
    for secret in (begun.keys[""], begun.client, OWNER_TOKEN, WORKER_TOKEN):
        assert secret.encode() not in stored
    assert {file.stat().st_mode & 0o077 for file in files} == {0}


@pytest.mark.promise("gateway:settings")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "host: '0.0.0.0' is reachable from other machines; set token"),
        ({"token": "a" * 20, "worker_token": "a" * 20}, "token: two roles have the same token"),
        ({"viewer_token": "short"}, "viewer_token: shorter than 16 characters"),
        ({}, "upstream: a trained agent needs a model"),
        ({"agents": {"wolf": {}}}, "write trained: true, or the model"),
        ({"limits": {"calls": 0}}, "limits.calls"),
    ],
)
def test_settings_that_open_the_gateway_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewaySettings(**settings).check()
