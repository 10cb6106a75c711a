"""Stub of a cluster with agent-sandbox: the part of the Kubernetes API that has sandbox claims, and the sandbox router.

The controller is instant: a claim is ready when it has been created. It executes commands in boxes.
"""

import contextlib
import json
import os
import shlex
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.runtimes.remote.stubs.boxes import Box
from tests.runtimes.remote.stubs.serving import serve

_KEY = os.environ["STUB_KEY"]
CLAIMS: dict[str, dict[str, Any]] = {}
BOXES: dict[str, Box] = {}


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"kind": "Status", "status": "Failure", "message": message, "code": status}, status)


def _allowed(request: Request) -> bool:
    return request.headers.get("authorization") == f"Bearer {_KEY}"


def _selected(claim: dict[str, Any], request: Request) -> bool:
    wanted = dict(
        part.split("=") for part in request.query_params.get("labelSelector", "").split(",") if part
    )
    field = request.query_params.get("fieldSelector", "").removeprefix("metadata.name=")
    meta = claim["metadata"]
    return wanted.items() <= meta["labels"].items() and field in ("", meta["name"])


async def claims(request: Request) -> Response:
    """Create, list or watch claims."""
    if not _allowed(request):
        return _refuse(401, f"Unauthorized: {request.headers.get('authorization')}")
    if request.method == "POST":
        claim = await request.json()
        name = claim["metadata"]["name"]
        claim["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
        if claim["spec"]["warmPoolRef"]["name"] == "missing":
            reason = {"type": "Ready", "status": "False", "reason": "WarmPoolNotFound", "message": "no pool"}
            claim["status"] = {"conditions": [reason]}
        else:
            BOXES[name] = await Box.start()
            ready = {"type": "Ready", "status": "True", "reason": "Ready"}
            claim["status"] = {"conditions": [ready], "sandbox": {"name": f"pod-{name}"}}
        CLAIMS[name] = claim
        return JSONResponse(claim, 201)
    selected = [claim for claim in CLAIMS.values() if _selected(claim, request)]
    if request.query_params.get("watch"):

        async def events() -> AsyncIterator[str]:
            for claim in selected:
                yield json.dumps({"type": "ADDED", "object": claim}) + "\n"

        return StreamingResponse(events(), media_type="application/json")
    return JSONResponse({"kind": "SandboxClaimList", "metadata": {}, "items": selected})


async def claim(request: Request) -> Response:
    """Read, change or delete a claim."""
    name = request.path_params["name"]
    if not _allowed(request) or name not in CLAIMS:
        return _refuse(404, f"sandboxclaims {name!r} not found")
    if request.method == "DELETE":
        if name in BOXES:
            await BOXES.pop(name).end()
        return JSONResponse(CLAIMS.pop(name))
    if request.method == "PATCH":
        CLAIMS[name]["spec"]["lifecycle"] |= (await request.json())["spec"]["lifecycle"]
    return JSONResponse(CLAIMS[name])


async def sandbox(request: Request) -> Response:
    """Describe a sandbox, which has no address of its own."""
    name = request.path_params["name"]
    return JSONResponse({"metadata": {"name": name}, "status": {}})


def _box_of(request: Request) -> Box | None:
    return BOXES.get(request.headers.get("x-sandbox-id", "").removeprefix("pod-"))


async def execute(request: Request) -> Response:
    """Run a program in the folder of the pod's runtime."""
    box = _box_of(request)
    if box is None:
        return _refuse(404, "sandbox not found")
    status, out, err = await box.finish(shlex.split((await request.json())["command"]), cwd="/app")
    return JSONResponse({"stdout": out.decode(), "stderr": err.decode(), "exit_code": status})


async def upload(request: Request) -> Response:
    """Write a file into the folder of the pod's runtime."""
    box = _box_of(request)
    if box is None:
        return _refuse(404, "sandbox not found")
    async with request.form(max_part_size=1 << 30) as form:
        part = form["file"]
        assert not isinstance(part, str)
        await box.write(f"app/{part.filename}", await part.read())
    return JSONResponse({"message": "uploaded"})


async def download(request: Request) -> Response:
    """Read a file of the folder of the pod's runtime."""
    box = _box_of(request)
    if box is None:
        return _refuse(404, "sandbox not found")
    return Response(
        await box.read(f"app/{request.path_params['path']}"), media_type="application/octet-stream"
    )


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """End all boxes with the stub."""
    yield
    for box in BOXES.values():
        await box.end()


_CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{space}/sandboxclaims"
app = Starlette(
    routes=[
        Route(_CLAIMS, claims, methods=["GET", "POST"]),
        Route(_CLAIMS + "/{name}", claim, methods=["GET", "PATCH", "DELETE"]),
        Route("/apis/agents.x-k8s.io/v1beta1/namespaces/{space}/sandboxes/{name}", sandbox),
        Route("/execute", execute, methods=["POST"]),
        Route("/upload", upload, methods=["POST"]),
        Route("/download/{path:path}", download),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    serve(app)
