"""Launcher of the isolated Chromium: `python _launch.py PLAN CHROMIUM-ARGUMENTS…`, run by Playwright's driver.

It drops root privileges, enters an empty network namespace that contains only a socket on which the server listens,
and runs Chromium in bubblewrap: of the host it sees only /usr and parts of /etc, and only its own processes.
Chromium's own sandbox stays enabled inside. Everything dies with the process that started it.

It uses only the standard library, and imports nothing after dropping privileges, when the modules may be unreadable.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PR_SET_DUMPABLE = 4
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
PROXY_PORT = 1080
TEMPORARY_BYTES = 2 * 1024**3
PROCESSES = 4096
FEATURES_OFF = (
    # A spare process for the next page of the same context: most contexts have one page.
    "SpareRendererForSitePerProcess",
    # Pages behind the address bar, with an additional process per context: nobody types there.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
)

ETC = ("alternatives", "chromium.d", "fonts", "ld.so.cache", "ssl/certs", "ca-certificates")
POLICIES = ("/etc/chromium/policies", "/etc/opt/chrome/policies", "/etc/chromium-browser/policies")


def main() -> None:
    """Isolate this process, then execute Chromium in it."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    link = socket.socket(socket.AF_UNIX)
    link.connect(plan["control"])
    join_cgroup(plan["group"]["member_files"])
    drop_privileges(libc, plan["uid"])
    enter_network_namespace(libc)
    send_proxy_socket(link)
    set_limits(plan["file_bytes"], plan["memory_bytes"])
    arguments = [adapt_argument(argument, plan["home"]) for argument in sys.argv[2:]]
    command = [plan["bwrap"], *bubblewrap_arguments(plan), "--", plan["executable"], *arguments]
    os.execv(command[0], command)


def adapt_argument(argument: str, home: str) -> str:
    """Return an argument of Playwright, adapted to the sandbox."""
    name = argument.partition("=")[0]
    if name == "--user-data-dir":
        return f"{name}={home}/profile"
    if name == "--disable-features":
        return ",".join((argument, *FEATURES_OFF))
    return argument


def join_cgroup(member_files: list[str]) -> None:
    """Join the cgroup with the memory limit. Without permission, only the limit of each process applies."""
    for path in member_files:
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write("0")
        except OSError:
            pass


def drop_privileges(libc: ctypes.CDLL, uid: int) -> None:
    """Drop root privileges and become an unused user id."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # After a change of user /proc/self belongs to root, and the id maps could not be written.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def enter_network_namespace(libc: ctypes.CDLL) -> None:
    """Enter a network namespace that has only a loopback interface."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        sys.exit(
            f"agentflow: the kernel refuses a network namespace for the browser: {os.strerror(ctypes.get_errno())}"
        )
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def send_proxy_socket(link: socket.socket) -> None:
    """Listen in this network namespace and send the socket to the server, which accepts and checks every connection."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", PROXY_PORT))
        proxy.listen(512)
        socket.send_fds(link, [b"proxy"], [proxy.fileno()])
    link.close()


def set_limits(file_bytes: int, memory_bytes: int) -> None:
    """Set resource limits; a write beyond the file size limit fails without killing the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for kind, maximum in (
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, PROCESSES),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(kind, (bound, bound))
    # When memory runs out, the kernel kills a page first.
    with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
        file.write("800")


def bubblewrap_arguments(plan: dict[str, Any]) -> list[str]:
    """Return the arguments of bubblewrap."""
    words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += [
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
        "--hostname",
        "browser",
    ]
    words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    words += ["--size", str(TEMPORARY_BYTES), "--tmpfs", plan["home"]]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            words += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            words += ["--ro-bind", name, name]
    for name in ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path in POLICIES:
        words += ["--ro-bind", plan["policies"], path]
    folder = os.path.dirname(plan["executable"])
    if not folder.startswith("/usr/"):
        words += ["--ro-bind", folder, folder]
    words += ["--bind", plan["downloads"], plan["downloads"], "--chdir", plan["home"]]
    for name, value in (("HOME", plan["home"]), ("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")):
        words += ["--setenv", name, value]
    return words


if __name__ == "__main__":
    main()
