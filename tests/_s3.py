"""S3-compatible server of the suite, and a proxy in front of it that interrupts the service."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream

__all__ = ["BUCKET", "CREDENTIALS", "InterruptingProxy", "interrupting_proxy", "s3_server"]

BUCKET = "kept-files"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "a-secret-that-no-log-has",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def s3_server(*, checks_keys: bool = False) -> Generator[str]:
    """Run a server with an empty bucket; return its URL.

    :param checks_keys: refuse keys that it does not know, which are all.
    """
    # The bucket is created before keys are checked.
    environment = {**os.environ, **({"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if checks_keys else {})}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            line = next((line for line in process.stderr if "Running on" in line), "")
            assert line, "the tests need a server with the API of S3: install moto[server]"
            url = line.split("Running on ")[1].strip()
            httpx2.put(f"{url}/{BUCKET}").raise_for_status()
            # Its log must not fill the pipe.
            with subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL):
                yield url
                process.kill()
        finally:
            process.kill()


class InterruptingProxy:
    """Proxy that cuts one connection and then refuses some."""

    def __init__(self, url: str) -> None:
        self.url = url
        """Its own address."""
        self.cut_upload_after: int | None = None
        """Bytes of a request after which its connection is cut, once."""
        self.cut_download_after: int | None = None
        """Bytes of a response after which its connection is cut, once."""
        self.refused = 0
        """Number of the next connections that are closed at once."""
        self.was_cut = anyio.Event()
        """A connection was cut."""

    async def forward(self, client: SocketStream, host: str, port: int) -> None:
        """Forward one connection in both directions."""
        async with client:
            if self.refused > 0:
                self.refused -= 1
                return
            async with await anyio.connect_tcp(host, port) as server, anyio.create_task_group() as group:

                async def copy(source: ByteReceiveStream, to: ByteSendStream, direction: str) -> None:
                    copied = 0
                    try:
                        async for part in source:
                            copied += len(part)
                            limit: int | None = getattr(self, direction)
                            if limit is not None and copied > limit:
                                setattr(self, direction, None)
                                self.refused = 2
                                self.was_cut.set()
                                break
                            await to.send(part)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(copy, client, server, "cut_upload_after")
                group.start_soon(copy, server, client, "cut_download_after")


@asynccontextmanager
async def interrupting_proxy(url: str) -> AsyncGenerator[InterruptingProxy]:
    """Run a proxy in front of a server."""
    host, port = url.removeprefix("http://").split(":")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    own: int = listener.extra(SocketAttribute.local_port)
    proxy = InterruptingProxy(f"http://127.0.0.1:{own}")
    async with listener, anyio.create_task_group() as group:

        async def forward(client: SocketStream) -> None:
            await proxy.forward(client, host, int(port))

        async def serve() -> None:
            try:
                await listener.serve(forward)
            except* anyio.ClosedResourceError:
                pass

        group.start_soon(serve)
        yield proxy
        # Closing removes the reader first: cancelled at the moment of a connection, the accept of asyncio fails.
        await listener.aclose()
        group.cancel_scope.cancel()
