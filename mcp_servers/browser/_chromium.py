"""The server's one Chromium process, with Playwright's driver and the proxy. It starts on first use, and again after a crash."""

import array
import contextlib
import logging
import socket
from importlib import import_module
from typing import TYPE_CHECKING

import anyio

from agentflow.errors import ErrorKind, IsolationUnavailable, ToolFailure
from mcp_servers.browser._launch_directory import LaunchDirectory, half_of_the_machine, make_launch_directory
from mcp_servers.browser._proxy import BrowserProxy

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

    from mcp_servers.browser._settings import BrowserSettings


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
_NOT_STARTED = "Chromium was started and did not become ready"


class BrowserProcess:
    """Owner of the running Chromium, its Playwright driver and its proxy."""

    def __init__(self, settings: "BrowserSettings") -> None:
        self._settings = settings
        self._lock = anyio.Lock()
        self._driver: Playwright | None = None
        self._browser: Browser | None = None
        self._directory: LaunchDirectory | None = None
        self.policy = settings.policy
        """Addresses that pages may connect to."""
        self.proxy = BrowserProxy(self.policy)
        """The browser's only connection to the network."""

    @property
    def running(self) -> bool:
        """Chromium has been started and is connected."""
        return self._browser is not None and self._browser.is_connected()

    async def browser(self) -> "Browser":
        """Return the browser; start it if it is not running.

        :raises ToolFailure: `unavailable`, if it cannot be started on this machine.
        """
        async with self._lock:
            if not self.running:
                # Shielded: a half-started browser would be left behind.
                with anyio.CancelScope(shield=True):
                    await self._stop()
                    self._browser = await self._start()
            assert self._browser is not None
            return self._browser

    async def close(self) -> None:
        """Stop the browser, the driver and the proxy."""
        async with self._lock:
            await self._stop()

    async def _start(self) -> "Browser":
        try:
            with anyio.fail_after(START_SECONDS):
                await self._start_driver()
                self._directory = await anyio.to_thread.run_sync(
                    make_launch_directory,
                    self._settings.executable,
                    2 * self._settings.file_bytes,
                    self._settings.memory_bytes or half_of_the_machine(),
                )
                return await self._launch(self._directory)
        except TimeoutError:
            await self._stop()
            message = f"the browser cannot be started: it was not ready after {START_SECONDS} seconds."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
        except (IsolationUnavailable, OSError) as error:
            await self._stop()
            raise ToolFailure(ErrorKind.UNAVAILABLE, f"the browser cannot be started: {error}") from None

    async def _start_driver(self) -> None:
        try:
            # The import reads hundreds of files.
            playwright = await anyio.to_thread.run_sync(import_module, "playwright.async_api")
        except ImportError:
            message = "the package playwright is missing: pip install 'agentflow[browser]'"
            raise IsolationUnavailable(message) from None
        self._driver = await playwright.async_playwright().start()

    async def _launch(self, directory: LaunchDirectory) -> "Browser":
        from playwright.async_api import Error

        assert self._driver is not None
        try:
            browser = await self._driver.chromium.launch(
                executable_path=directory.program,
                # Chromium's own sandbox, inside ours.
                chromium_sandbox=True,
                downloads_path=directory.downloads,
                args=list(_ARGUMENTS),
                # The server's environment may hold secrets.
                env={"PATH": "/usr/bin:/bin"},
                proxy={"server": _PROXY},
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            raise IsolationUnavailable(_start_error(error.message)) from None
        listener = await anyio.to_thread.run_sync(_take_socket, directory.control)
        await self.proxy.start(listener)
        return browser

    async def _stop(self) -> None:
        self.proxy.close()
        self.proxy = BrowserProxy(self.policy)
        browser, driver, directory = self._browser, self._driver, self._directory
        self._browser = self._driver = self._directory = None
        with anyio.CancelScope(shield=True):
            for stop in (browser and browser.close, driver and driver.stop):
                if stop is None:
                    continue
                with anyio.move_on_after(END_SECONDS):
                    try:
                        await stop()
                    except Exception:  # boundary: a dead process must not keep the rest from stopping
                        logger.debug("the browser did not end cleanly", exc_info=True)
            if directory is not None:
                await anyio.to_thread.run_sync(directory.close)


def _take_socket(control: socket.socket) -> socket.socket:
    """Receive the listening socket that the launcher sends. Blocks, but Chromium is running by then, so it has been sent."""
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
    raise IsolationUnavailable(_NOT_STARTED)


def _start_error(message: str) -> str:
    """Return the line of Playwright's message that says why Chromium did not start."""
    reasons: list[str] = []
    for line in message.splitlines():
        _, found, text = line.partition("[err] ")
        if found and text.strip():
            reasons.append(text.strip().removeprefix("agentflow: "))
    with contextlib.suppress(StopIteration):
        return next(line for line in reasons if "bwrap" in line or "kernel" in line or "FATAL" in line)[:300]
    return reasons[-1][:300] if reasons else f"{_NOT_STARTED}: {message.splitlines()[0][:200]}"
