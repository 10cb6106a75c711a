"""The server's one Chromium process, with Playwright's driver and the proxy. It starts on first use, and again after a crash."""

import contextlib
import fcntl
import json
import logging
import os
import shlex
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from agentflow.errors import ErrorKind, IsolationUnavailable, ToolFailure
from agentflow.extras import missing_extra
from runtimes.egress import EgressProxy
from runtimes.process.linux import _cgroups as cgroups

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

    from mcp_servers.browser._settings import BrowserSettings

HOME = "/tmp"  # inside bubblewrap, private to Chromium
_FIRST_UID = 0x6E000000
_PREFIX = "agentflow-browser"
_CHROMIUMS = (
    # Debian's `chromium` is a script around this one.
    "/usr/lib/chromium/chromium",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
)
_NAMESPACE_SETTINGS = (
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Files under /proc/sys, the value that disables user namespaces, and the setting that enables them."""
_OWN_SERVICES = (
    "content-autofill.googleapis.com",
    "optimizationguide-pa.googleapis.com",
    "safebrowsing.googleapis.com",
    "update.googleapis.com",
)
"""Hosts that the browser itself would contact; pages have no use for them."""
_POLICIES = {
    "URLBlocklist": ["file://*", "chrome://*", "devtools://*", "view-source:*", "filesystem:*"],
    "URLAllowlist": ["chrome://newtab"],
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "BackgroundModeEnabled": False,
    "BrowserSignin": 0,
    "ComponentUpdatesEnabled": False,
    "DefaultSearchProviderEnabled": False,
    "DnsOverHttpsMode": "off",
    "MetricsReportingEnabled": False,
    "NetworkPredictionOptions": 2,
    "PasswordManagerEnabled": False,
    "SafeBrowsingProtectionLevel": 0,
    "SearchSuggestEnabled": False,
    "SyncDisabled": True,
    "TranslateEnabled": False,
    "WebRtcIPHandling": "disable_non_proxied_udp",
}
"""Chromium policies: addresses that pages may not open, and features that send data elsewhere."""
MemoryGroup: TypeAlias = dict[str, Any]
"""A memory cgroup as JSON: the files through which a process joins it, and the directories to remove."""
NO_GROUP: Final[MemoryGroup] = {"member_files": [], "folders": {}, "version": 0}
"""Stands for no cgroup."""
_MEMBERS = "chromium"
_COUNTED = ("memory", "")
"""Controllers that count memory in cgroup version 1 and 2."""


@dataclass(frozen=True, slots=True)
class LaunchDirectory:
    """Files of one Chromium process. Close it after Chromium has ended."""

    folder: Path
    program: Path
    """Program that Playwright starts."""
    downloads: Path
    """The only directory that Chromium shares with the server."""
    control: socket.socket
    """Socket through which the launcher sends the proxy's listening socket."""
    alive: int
    """Descriptor of a lock that marks the directory as in use."""
    group: MemoryGroup
    """Cgroup that limits Chromium's memory."""

    def close(self) -> None:
        """Remove the directory and the cgroup. Blocks briefly."""
        self.control.close()
        shutil.rmtree(self.downloads, ignore_errors=True)
        # Otherwise the next server finds the cgroup through the directory.
        if remove_group(self.group):
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.alive)


def _check_requirements(executable: str | None) -> tuple[str, str]:
    """Return the paths of Chromium and bubblewrap.

    :raises IsolationUnavailable: naming the first missing requirement and its remedy.
    """
    if sys.platform != "linux":
        raise IsolationUnavailable("the browser needs Linux namespaces: use a Linux machine or container")
    chromium, bubblewrap = find_chromium(executable), shutil.which("bwrap")
    if chromium is None:
        what = f"there is no Chromium at {executable}" if executable else "there is no Chromium"
        message = f"{what}: install the package chromium, or name one in the setting browser.executable"
        raise IsolationUnavailable(message)
    if bubblewrap is None:
        message = "bubblewrap, the browser's sandbox, is missing: install the package bubblewrap"
        raise IsolationUnavailable(message)
    for name, bad, remedy in _NAMESPACE_SETTINGS:
        if _read(f"/proc/sys/{name}") == bad:
            message = f"user namespaces, which the browser's sandbox needs, are disabled: sysctl {remedy}"
            raise IsolationUnavailable(message)
    return chromium, bubblewrap


def find_chromium(executable: str | None) -> str | None:
    """Return the path of the configured Chromium, or of the first one on the system."""
    for name in (executable,) if executable else _CHROMIUMS:
        path = shutil.which(name)
        if path is not None:
            return os.path.realpath(path)
    return None


def make_launch_directory(executable: str | None, file_bytes: int, memory_bytes: int) -> LaunchDirectory:
    """Create the directory. Blocks briefly.

    :param file_bytes: the largest file that Chromium may write.
    :param memory_bytes: memory limit of all its processes together, or of each where cgroups are not writable.
    :raises IsolationUnavailable: naming the first missing requirement and its remedy.
    """
    chromium, bubblewrap = _check_requirements(executable)
    _sweep()
    name, folder, alive = _new_folder()
    downloads = folder / "downloads"
    downloads.mkdir(0o700)
    uid = os.geteuid()
    if uid == 0:
        # An unused user id; process ids are unique, so two servers never share one.
        uid = _FIRST_UID + os.getpid()
        os.chown(downloads, uid, uid)
    control = socket.socket(socket.AF_UNIX)
    control.bind(str(folder / "control"))
    control.listen(1)
    control.setblocking(False)
    group = make_group(f"browser-{os.geteuid()}", name, memory_bytes)
    plan: dict[str, object] = {
        "bwrap": bubblewrap,
        "control": str(folder / "control"),
        "downloads": str(downloads),
        "executable": chromium,
        "file_bytes": file_bytes,
        "group": group,
        "home": HOME,
        "memory_bytes": memory_bytes,
        "policies": str(_write_policies(folder)),
        "uid": uid,
    }
    return LaunchDirectory(folder, _write_program(folder, plan), downloads, control, alive, group)


def _new_folder() -> tuple[str, Path, int]:
    """Create a directory; return its random name, its path and the descriptor of its lock."""
    # It is locked before it gets the name by which other servers look for leftovers.
    unnamed = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}-"))
    alive = os.open(unnamed / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    name = unnamed.name.rpartition("-")[2]
    folder = unnamed.rename(unnamed.with_name(f"{_PREFIX}-{os.geteuid()}-{name}"))
    # Chromium's user may traverse the directory but not list it.
    folder.chmod(0o711)
    return name, folder, alive


def _write_policies(folder: Path) -> Path:
    policies = folder / "policies"
    managed = policies / "managed"
    managed.mkdir(parents=True)
    (managed / "agentflow.json").write_text(json.dumps(_POLICIES), encoding="utf-8")
    for path in (policies, managed):
        path.chmod(0o755)
    (managed / "agentflow.json").chmod(0o644)
    return policies


def _write_program(folder: Path, plan: dict[str, object]) -> Path:
    """Write the launch plan, and the script that Playwright starts."""
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    program = folder / "chromium"
    launcher = str(Path(__file__).with_name("_launch.py"))
    words = [sys.executable, "-I", "-S", launcher, str(folder / "plan.json")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return program


def _sweep() -> None:
    """Remove the directories and cgroups of killed servers."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-{os.geteuid()}-*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / "alive", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove_group(_group_of(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _group_of(folder: Path) -> MemoryGroup:
    """Return the cgroup of a directory, or `NO_GROUP` if its server was killed before creating one."""
    try:
        return json.loads((folder / "plan.json").read_text(encoding="utf-8"))["group"]
    except (OSError, ValueError, KeyError):
        return NO_GROUP


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def half_of_the_machine() -> int:
    """Return half of the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def make_group(realm: str, name: str, memory: int) -> MemoryGroup:
    """Create a cgroup with a memory limit; without `member_files` if cgroups are not writable."""
    hierarchies = cgroups.prepare(realm, name, idle=False)
    made = cgroups.make(hierarchies, _MEMBERS, memory, None)
    for fd in (*made.members, made.oom, made.memory, made.pids_events, made.folder):
        if fd >= 0:
            os.close(fd)
    # Only memory: a CPU weight would be that of one process, however many pages there are.
    counted = [folder for controller, folder in hierarchies.folders.items() if controller in _COUNTED]
    return {
        "member_files": [f"{folder}/{_MEMBERS}/cgroup.procs" for folder in counted],
        "folders": hierarchies.folders,
        "version": hierarchies.version,
    }


def remove_group(group: MemoryGroup) -> bool:
    """Remove the cgroup after a short wait for dying processes; return `False` if some are left."""
    cgroups.remove_all(cgroups.Hierarchies(group["version"], group["folders"]))
    return not any(os.path.exists(folder) for folder in group["folders"].values())


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


def admit_page(host: str, port: int) -> None:
    """Refuse connections that no page asked for.

    :raises ToolFailure: `denied`.
    """
    if host in _OWN_SERVICES:
        raise ToolFailure(ErrorKind.DENIED, f"{host} is a service of the browser, not of pages.")


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
        self.proxy = EgressProxy(self.policy, admit=admit_page)
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
            raise IsolationUnavailable(missing_extra("the browser", "browser")) from None
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
        self.proxy = EgressProxy(self.policy, admit=admit_page)
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
        _, descriptors, _, _ = socket.recv_fds(link, 16, 1)
    if not descriptors:
        raise IsolationUnavailable(_NOT_STARTED)
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener


def _start_error(message: str) -> str:
    """Return the line of Playwright's message that says why Chromium did not start."""
    texts = (line.partition("[err] ")[2].strip() for line in message.splitlines())
    reasons = [text.removeprefix("agentflow: ") for text in texts if text]
    if not reasons:
        return f"{_NOT_STARTED}: {message.splitlines()[0][:200]}"
    causes = (line for line in reasons if "bwrap" in line or "kernel" in line or "FATAL" in line)
    return next(causes, reasons[-1])[:300]
