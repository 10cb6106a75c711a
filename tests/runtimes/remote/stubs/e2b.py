"""Stub of E2B: its REST API and the daemon of a sandbox, on one address. It executes commands in boxes.

A fork with memory is another id of the same box, as no box can be cloned with its memory; a template named `forgetful`
is forked into an empty box.
"""

import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.process import process_pb as pb
from e2b.envd.process.process_connect import Process, ProcessASGIApplication
from protobuf import Oneof
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from tests.runtimes.remote.stubs.boxes import Box
from tests.runtimes.remote.stubs.serving import serve

_KEY = os.environ["STUB_KEY"]


@dataclass
class Sandbox:
    """Sandbox of the stub."""

    box: Box
    template: str
    metadata: dict[str, str]
    timeout: int
    internet: bool


SANDBOXES: dict[str, Sandbox] = {}


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"code": status, "message": message}, status)


def _described(name: str) -> dict[str, Any]:
    return {
        "templateID": SANDBOXES[name].template,
        "sandboxID": name,
        "clientID": "stub",
        "envdVersion": "0.6.7",
        "envdAccessToken": f"token-{name}",
    }


def _keyed(request: Request) -> bool:
    return request.headers.get("x-api-key") == _KEY


async def sandboxes(request: Request) -> Response:
    """Create a sandbox, or list them."""
    if not _keyed(request):
        return _refuse(401, f"the key {request.headers.get('x-api-key')} is not valid")
    if request.method == "POST":
        body = await request.json()
        if body["templateID"] == "missing":
            return _refuse(404, "template 'missing' not found")
        name = secrets.token_hex(8)
        SANDBOXES[name] = Sandbox(
            await Box.start(),
            body["templateID"],
            body["metadata"],
            body["timeout"],
            body["allow_internet_access"],
        )
        return JSONResponse(_described(name), 201)
    wanted = {
        unquote(key): unquote(value)
        for key, value in parse_qsl(unquote(request.query_params.get("metadata", "")))
    }
    return JSONResponse(
        [
            {
                **_described(name),
                "startedAt": "2026-01-01T00:00:00Z",
                "endAt": "2026-01-02T00:00:00Z",
                "cpuCount": 2,
                "memoryMB": 512,
                "diskSizeMB": 512,
                "state": "running",
                "metadata": sandbox.metadata,
                "timeout": sandbox.timeout,
                "internet": sandbox.internet,
            }
            for name, sandbox in SANDBOXES.items()
            if wanted.items() <= sandbox.metadata.items()
        ]
    )


async def sandbox_by_name(request: Request) -> Response:
    """Kill a sandbox, set its timeout, or fork it."""
    name = request.path_params["name"]
    if not _keyed(request) or name not in SANDBOXES:
        return _refuse(404 if _keyed(request) else 401, f"sandbox {name} not found")
    if request.method == "DELETE":
        box = SANDBOXES.pop(name).box
        if all(other.box is not box for other in SANDBOXES.values()):
            await box.end()
        return Response(status_code=204)
    body = await request.json()
    sandbox = SANDBOXES[name]
    if request.path_params["action"] == "timeout":
        sandbox.timeout = body["timeout"]
        return Response(status_code=204)
    made: list[dict[str, Any]] = []
    for _ in range(body["count"]):
        fork = secrets.token_hex(8)
        box = await Box.start() if sandbox.template == "forgetful" else sandbox.box
        SANDBOXES[fork] = Sandbox(box, sandbox.template, sandbox.metadata, body["timeout"], sandbox.internet)
        made.append({"sandbox": _described(fork)})
    return JSONResponse(made, 201)


def _sandbox_of(headers: Mapping[str, str]) -> Sandbox | None:
    name = headers.get("e2b-sandbox-id", "")
    return SANDBOXES.get(name) if headers.get("x-access-token") == f"token-{name}" else None


async def files(request: Request) -> Response:
    """Read or write a file."""
    sandbox = _sandbox_of(request.headers)
    if sandbox is None:
        return _refuse(502, "sandbox not found")
    path = request.query_params["path"]
    if request.method == "GET":
        try:
            return Response(await sandbox.box.read(path), media_type="application/octet-stream")
        except FileNotFoundError:
            return _refuse(404, f"path '{path}' does not exist")
    async with request.form(max_part_size=1 << 30) as form:
        for _, part in form.multi_items():
            assert not isinstance(part, str)
            await sandbox.box.write(path, await part.read())
    return JSONResponse([{"name": os.path.basename(path), "type": "file", "path": path}])


async def health(request: Request) -> Response:
    """Report whether the sandbox runs."""
    return Response(status_code=204 if _sandbox_of(request.headers) else 502)


class Processes(Process):
    """Processes of a sandbox."""

    async def start(
        self, request: pb.StartRequest, ctx: RequestContext[pb.StartRequest, pb.StartResponse], /
    ) -> AsyncIterator[pb.StartResponse]:
        """Run a process and stream its output."""
        headers = ctx.request_headers
        sandbox = _sandbox_of(headers)
        if sandbox is None:
            raise ConnectError(Code.UNAVAILABLE, "The sandbox was not found")
        config = request.process
        assert config is not None
        yield pb.StartResponse(event=pb.ProcessEvent(event=Oneof("start", pb.ProcessEvent.StartEvent(pid=1))))
        argv, env = [config.cmd, *config.args], dict(config.envs)
        async with contextlib.aclosing(sandbox.box.run(argv, env=env, cwd=config.cwd or "/")) as output:
            async for name, value in output:
                if isinstance(value, int):
                    end = pb.ProcessEvent.EndEvent(
                        exit_code=value, exited=True, status=f"exit status {value}"
                    )
                    yield pb.StartResponse(event=pb.ProcessEvent(event=Oneof("end", end)))
                else:
                    if name == "stdout":
                        data = pb.ProcessEvent.DataEvent(output=Oneof("stdout", value))
                    else:
                        data = pb.ProcessEvent.DataEvent(output=Oneof("stderr", value))
                    yield pb.StartResponse(event=pb.ProcessEvent(event=Oneof("data", data)))


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """End all boxes with the stub."""
    yield
    for box in {id(sandbox.box): sandbox.box for sandbox in SANDBOXES.values()}.values():
        await box.end()


processes = ProcessASGIApplication(Processes())
app = Starlette(
    routes=[
        Route("/v2/sandboxes", sandboxes, methods=["GET", "POST"]),
        Route("/sandboxes/{name}", sandbox_by_name, methods=["DELETE"]),
        Route("/sandboxes/{name}/{action}", sandbox_by_name, methods=["POST"]),
        Route("/files", files, methods=["GET", "POST"]),
        Route("/health", health),
        Mount("/process.Process", processes),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    serve(app)
