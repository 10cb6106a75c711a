"""The server's one Chromium process, with Playwright's driver and the proxy. It starts on first use, and again after a crash."""

import array
import contextlib
import logging
import socket
from importlib import import_module
from typing import TYPE_CHECKING

import anyio

from agentflow.errors import ErrorKind, IsolationUnavailable, ToolFailure
from mcp_servers.browser._launch_directory import Place, half_of_the_machine, prepare
from mcp_servers.browser._proxy import Proxy

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

    from mcp_servers.browser._settings import BrowserSettings

__all__ = ["Engine"]

logger = logging.getLogger(__name__)
START_SECONDS = 60
END_SECONDS = 10
_PROXY = "socks5://127.0.0.1:1080"
_ARGUMENTS = (
    "--disable-crash-reporter",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--no-pings",
    "--disable-quic",
)
_REMAINS = "a Chromium that was started did not come up"


class Engine:
    """Gives out the running browser."""

    def __init__(self, settings: "BrowserSettings") -> None:
        self._settings = settings
        self._turn = anyio.Lock()
        self._driver: Playwright | None = None
        self._browser: Browser | None = None
        self._place: Place | None = None
        self.policy = settings.policy
        """Where pages may connect to."""
        self.proxy = Proxy(self.policy)
        """The browser's way out."""

    @property
    def running(self) -> bool:
        """There is a browser, and it lives."""
        return self._browser is not None and self._browser.is_connected()

    async def browser(self) -> "Browser":
        """The browser; started now, if there is none or the last one has died.

        :raises ToolFailure: `unavailable`, if it can't be had on this machine.
        """
        async with self._turn:
            if not self.running:
                # Shielded: a browser that is half started belongs to nobody.
                with anyio.CancelScope(shield=True):
                    await self._stop()
                    self._browser = await self._start()
            assert self._browser is not None
            return self._browser

    async def close(self) -> None:
        """End it, and all that belongs to it."""
        async with self._turn:
            await self._stop()

    async def _start(self) -> "Browser":
        try:
            with anyio.fail_after(START_SECONDS):
                await self._start_driver()
                self._place = await anyio.to_thread.run_sync(
                    prepare,
                    self._settings.executable,
                    2 * self._settings.file_bytes,
                    self._settings.memory_bytes or half_of_the_machine(),
                )
                return await self._launch(self._place)
        except TimeoutError:
            await self._stop()
            message = f"the browser can't be started: it was not ready after {START_SECONDS} seconds."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
        except (IsolationUnavailable, OSError) as error:
            await self._stop()
            raise ToolFailure(ErrorKind.UNAVAILABLE, f"the browser can't be started: {error}") from None

    async def _start_driver(self) -> None:
        try:
            # Importing reads hundreds of files.
            playwright = await anyio.to_thread.run_sync(import_module, "playwright.async_api")
        except ImportError:
            message = "the package playwright is missing: pip install 'agentflow[browser]'"
            raise IsolationUnavailable(message) from None
        self._driver = await playwright.async_playwright().start()

    async def _launch(self, place: Place) -> "Browser":
        from playwright.async_api import Error

        assert self._driver is not None
        try:
            browser = await self._driver.chromium.launch(
                executable_path=place.program,
                # Chromium's own sandbox, inside of ours.
                chromium_sandbox=True,
                downloads_path=place.downloads,
                args=list(_ARGUMENTS),
                # The browser needs nothing of the server's environment, which may hold secrets.
                env={"PATH": "/usr/bin:/bin"},
                proxy={"server": _PROXY},
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            raise IsolationUnavailable(_first_complaint(error.message)) from None
        listener = await anyio.to_thread.run_sync(_take_socket, place.control)
        await self.proxy.start(listener)
        return browser

    async def _stop(self) -> None:
        self.proxy.close()
        self.proxy = Proxy(self.policy)
        browser, driver, place = self._browser, self._driver, self._place
        self._browser = self._driver = self._place = None
        with anyio.CancelScope(shield=True):
            for what in (browser and browser.close, driver and driver.stop):
                if what is None:
                    continue
                with anyio.move_on_after(END_SECONDS):
                    try:
                        await what()
                    except Exception:  # boundary: what is dead already must not keep the rest from ending
                        logger.debug("the browser did not end cleanly", exc_info=True)
            if place is not None:
                await anyio.to_thread.run_sync(place.close)


def _take_socket(control: socket.socket) -> socket.socket:
    """The listening socket that the started program sends. Blocks until it is there, which it is."""
    control.settimeout(START_SECONDS)
    link, _ = control.accept()
    with link:
        link.settimeout(START_SECONDS)
        size = array.array("i").itemsize
        _, ancillary, _, _ = link.recvmsg(16, socket.CMSG_SPACE(size))
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                listener = socket.socket(fileno=array.array("i", data[:size])[0])
                listener.setblocking(False)
                return listener
    raise IsolationUnavailable(_REMAINS)


def _first_complaint(message: str) -> str:
    """The line that says why Chromium did not start, out of all that Playwright tells."""
    complaints: list[str] = []
    for line in message.splitlines():
        _, found, said = line.partition("[err] ")
        if found and said.strip():
            complaints.append(said.strip().removeprefix("agentflow: "))
    with contextlib.suppress(StopIteration):
        return next(line for line in complaints if "bwrap" in line or "kernel" in line or "FATAL" in line)[
            :300
        ]
    return complaints[-1][:300] if complaints else f"{_REMAINS}: {message.splitlines()[0][:200]}"
