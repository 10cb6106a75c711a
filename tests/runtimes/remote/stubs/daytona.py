"""Stub of Daytona: the part of its API that has sandboxes, and the toolbox of a sandbox, on one address.

It executes commands in boxes. A sandbox has started when it is looked at for the second time; one of the snapshot
`broken` fails instead.
"""

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.runtimes.remote.stubs.boxes import Box
from tests.runtimes.remote.stubs.serving import serve

_KEY = os.environ["STUB_KEY"]
_DEFAULT_SECONDS = 10
_WITHOUT_MEANING: dict[str, Any] = {
    "organizationId": "stub",
    "env": {},
    "public": False,
    "kvm": False,
    "target": "stub",
    "cpu": 1,
    "gpu": 0,
    "memory": 1,
    "disk": 3,
}
"""Fields that a description must have."""


@dataclass
class Sandbox:
    """Sandbox of the stub."""

    box: Box
    wanted: dict[str, Any]
    state: str
    proxy: str


SANDBOXES: dict[str, Sandbox] = {}


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"statusCode": status, "message": message}, status)


def _refused(request: Request) -> JSONResponse | None:
    authorization = request.headers.get("authorization")
    return (
        None if authorization == f"Bearer {_KEY}" else _refuse(401, f"the key {authorization} is not valid")
    )


def _described(name: str) -> dict[str, Any]:
    sandbox = SANDBOXES[name]
    return {
        **_WITHOUT_MEANING,
        "id": name,
        "name": name,
        "user": sandbox.wanted["user"],
        "labels": sandbox.wanted["labels"],
        "networkBlockAll": sandbox.wanted["networkBlockAll"],
        "autoStopInterval": sandbox.wanted["autoStopInterval"],
        "autoDeleteInterval": sandbox.wanted["autoDeleteInterval"],
        "autoDestroyAt": f"in {sandbox.wanted['ttlMinutes']} minutes",
        "state": sandbox.state,
        "errorReason": "the image does not exist" if sandbox.state == "build_failed" else None,
        "toolboxProxyUrl": sandbox.proxy,
    }


async def sandboxes(request: Request) -> Response:
    """Create a sandbox, or list them, by default one a page."""
    if refused := _refused(request):
        return refused
    if request.method == "POST":
        wanted = await request.json()
        if wanted.get("snapshot") == "missing":
            return _refuse(404, "Snapshot missing not found")
        name = str(uuid.uuid4())
        proxy = str(request.base_url) + "toolbox"
        SANDBOXES[name] = Sandbox(await Box.start(), wanted, "creating", proxy)
        return JSONResponse(_described(name))
    labels = json.loads(request.query_params.get("labels", "{}"))
    start = int(request.query_params.get("cursor", "0"))
    names = [
        name for name, sandbox in SANDBOXES.items() if labels.items() <= sandbox.wanted["labels"].items()
    ]
    end = start + int(request.query_params.get("limit", "1"))
    more = str(end) if end < len(names) else None
    return JSONResponse({"items": [_described(name) for name in names[start:end]], "nextCursor": more})


async def sandbox_by_name(request: Request) -> Response:
    """Describe or delete a sandbox."""
    name = request.path_params["name"]
    if refused := _refused(request):
        return refused
    if name not in SANDBOXES:
        return _refuse(404, f"Sandbox with ID or name {name} not found")
    described = _described(name)
    if request.method == "DELETE":
        await SANDBOXES.pop(name).box.end()
        return JSONResponse({**described, "state": "destroyed"})
    if SANDBOXES[name].state == "creating":
        broken = SANDBOXES[name].wanted.get("snapshot") == "broken"
        SANDBOXES[name].state = "build_failed" if broken else "started"
    return JSONResponse(described)


async def set_ttl(request: Request) -> Response:
    """Set the time to live of a sandbox."""
    name = request.path_params["name"]
    if refused := _refused(request):
        return refused
    if name not in SANDBOXES:
        return _refuse(404, f"Sandbox with ID or name {name} not found")
    SANDBOXES[name].wanted["ttlMinutes"] = request.path_params["minutes"]
    return JSONResponse(_described(name))


def _box_of(request: Request) -> Box | None:
    sandbox = SANDBOXES.get(request.path_params["name"])
    return None if sandbox is None or sandbox.state != "started" else sandbox.box


async def execute(request: Request) -> Response:
    """Run a shell command; both of its outputs are one."""
    box = _box_of(request)
    if refused := _refused(request):
        return refused
    if box is None:
        return _refuse(400, "bad request: no IP address found. Is the Sandbox started?")
    body = await request.json()
    try:
        async with asyncio.timeout(body.get("timeout") or _DEFAULT_SECONDS):
            command = f"exec 2>&1; {body['command']}"
            status, out, _ = await box.finish(["sh", "-c", command], cwd=body.get("cwd") or "/")
    except TimeoutError:
        return _refuse(408, "command execution timeout")
    return JSONResponse({"exitCode": status, "result": out.decode()})


async def upload(request: Request) -> Response:
    """Write a file."""
    box = _box_of(request)
    if refused := _refused(request):
        return refused
    if box is None:
        return _refuse(400, "bad request: no IP address found. Is the Sandbox started?")
    path = request.query_params["path"]
    async with request.form(max_part_size=1 << 30) as form:
        part = form["file"]
        assert not isinstance(part, str)
        await box.write(path, await part.read())
    return JSONResponse({"name": os.path.basename(path), "path": path, "type": "file"})


async def download(request: Request) -> Response:
    """Read a file."""
    box = _box_of(request)
    if refused := _refused(request):
        return refused
    if box is None:
        return _refuse(400, "bad request: no IP address found. Is the Sandbox started?")
    try:
        data = await box.read(request.query_params["path"])
    except FileNotFoundError:
        return _refuse(404, "file not found")
    return Response(data, media_type="application/octet-stream")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """End all boxes with the stub."""
    yield
    for sandbox in SANDBOXES.values():
        await sandbox.box.end()


_TOOLBOX = "/toolbox/{name}"
app = Starlette(
    routes=[
        Route("/sandbox", sandboxes, methods=["GET", "POST"]),
        Route("/sandbox/{name}", sandbox_by_name, methods=["GET", "DELETE"]),
        Route("/sandbox/{name}/ttl/{minutes:int}", set_ttl, methods=["POST"]),
        Route(_TOOLBOX + "/process/execute", execute, methods=["POST"]),
        Route(_TOOLBOX + "/files/upload-v2", upload, methods=["POST"]),
        Route(_TOOLBOX + "/files/download", download),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    serve(app)
