"""First process of the agent in a remote sandbox: the requests of a container's init process, without a container.

The platform's own processes run beside the agent's, and the limits are those of each process.
"""

import contextlib
import os
import socket

from runtimes.docker.inside._container_init import ContainerInit, ContainerProcessRequests, serve
from runtimes.process.linux import _cgroups, _processes
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _spawn, _wire
from runtimes.process.trusted._sandboxes import SandboxRecord
from runtimes.remote.inside._paths import SAVED_FOLDERS


class _AgentRequests(ContainerProcessRequests):
    """Process requests: the agent's processes are those of its user, and the descendants of this one."""

    def _placement(self, sandbox: SandboxRecord) -> _spawn.ProcessPlacement:
        placement = super()._placement(sandbox)
        placement.rlimits["NPROC"] = sandbox.limits["processes"]
        return placement

    def _processes_of(self, sandbox: SandboxRecord) -> dict[int, _processes.ProcessInfo]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        infos = (_processes.read_process(pid) for pid in pids if pid not in self._helpers)
        found = {info.pid: info for info in infos if info is not None}
        own = os.getpid()
        return {
            pid: info
            for pid, info in found.items()
            if pid != own and (own in _processes.lineage(found, pid) or _is_of(pid, sandbox.uid))
        }


def _is_of(pid: int, uid: int) -> bool:
    try:
        return _processes.real_uid(pid) == uid
    except (OSError, KeyError):
        return False


class _AgentInit(ContainerInit):
    def limit_files(self) -> _cgroups.Cgroup:
        """Return no files: a visible cgroup would be that of the whole machine."""
        return _cgroups.Cgroup([], -1, -1, -1, -1, -1)


def main(connection: socket.socket) -> None:
    """Serve the sandbox server's requests until it closes the connection."""
    # Orphans become children of this process and are found again. gVisor has no subreapers.
    with contextlib.suppress(OSError):
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)

    def make(server: socket.socket, settings: _wire.Fields) -> ContainerInit:
        return _AgentInit(server, settings, _AgentRequests, SAVED_FOLDERS)

    serve(connection, make)
