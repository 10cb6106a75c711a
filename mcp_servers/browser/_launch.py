"""Starts Chromium where it can reach nothing: `python _launch.py PLAN CHROMIUM-ARGUMENTS…`, run by Playwright's driver.

It becomes an ordinary user, enters a network namespace of its own, in which nothing is but a socket that the server
listens on, and then runs Chromium in bubblewrap: no file of the host but /usr and some of /etc, no process but its
own. Chromium's own sandbox stays on inside. All of it dies with whoever started it.

It uses the standard library alone, and imports nothing once it is an ordinary user, who may not read the modules.
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
    # A process for the next page of the same context: most contexts have one page.
    "SpareRendererForSitePerProcess",
    # Pages of the address bar's own, in a process beside each context's: nobody types there.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
)

ETC = ("alternatives", "chromium.d", "fonts", "ld.so.cache", "ssl/certs", "ca-certificates")
POLICIES = ("/etc/chromium/policies", "/etc/opt/chrome/policies", "/etc/chromium-browser/policies")


def main() -> None:
    """Do it all, in order."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    link = socket.socket(socket.AF_UNIX)
    link.connect(plan["control"])
    enter_group(plan["group"]["doors"])
    become_ordinary(libc, plan["uid"])
    enter_empty_network(libc)
    hand_over_proxy(link)
    limit(plan["file_bytes"], plan["memory_bytes"])
    arguments = [adapted(argument, plan["home"]) for argument in sys.argv[2:]]
    command = [plan["bwrap"], *confinement(plan), "--", plan["executable"], *arguments]
    os.execv(command[0], command)


def adapted(argument: str, home: str) -> str:
    """An argument of Playwright's as it is meant here."""
    name = argument.partition("=")[0]
    if name == "--user-data-dir":
        return f"{name}={home}/profile"
    if name == "--disable-features":
        return ",".join((argument, *FEATURES_OFF))
    return argument


def enter_group(doors: list[str]) -> None:
    """Enter the group whose memory is bounded. Where this user may not, each process's own bound holds alone."""
    for door in doors:
        try:
            with open(door, "w", encoding="utf-8") as file:
                file.write("0")
        except OSError:
            pass


def become_ordinary(libc: ctypes.CDLL, uid: int) -> None:
    """Be the user whom nothing belongs to, if this is root."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # After a change of user the kernel hides a process from itself; its map of ids could not be written.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def enter_empty_network(libc: ctypes.CDLL) -> None:
    """Enter a network with a loopback of its own and nothing else."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        sys.exit(
            f"agentflow: the kernel refuses a network of the browser's own: {os.strerror(ctypes.get_errno())}"
        )
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def hand_over_proxy(link: socket.socket) -> None:
    """Listen in this network, and let the server take what comes: it stands outside and judges every connection."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", PROXY_PORT))
        proxy.listen(512)
        socket.send_fds(link, [b"proxy"], [proxy.fileno()])
    link.close()


def limit(file_bytes: int, memory_bytes: int) -> None:
    """Bound what Chromium may take; a write past the bound fails and kills nobody."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for kind, most in (
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, PROCESSES),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
    # Where memory ends, a page ends first.
    with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
        file.write("800")


def confinement(plan: dict[str, Any]) -> list[str]:
    """The arguments of bubblewrap."""
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
    for place in POLICIES:
        words += ["--ro-bind", plan["policies"], place]
    folder = os.path.dirname(plan["executable"])
    if not folder.startswith("/usr/"):
        words += ["--ro-bind", folder, folder]
    words += ["--bind", plan["downloads"], plan["downloads"], "--chdir", plan["home"]]
    for name, value in (("HOME", plan["home"]), ("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")):
        words += ["--setenv", name, value]
    return words


if __name__ == "__main__":
    main()
