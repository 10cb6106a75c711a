"""Processes: signals, tracing, and the memory of the runtime's and of other sandboxes' processes."""

from tests.attacks._table import Attack, attacks

CATEGORY = "processes"
GONE = "(EPERM|ESRCH|EACCES|ENOENT)"

_SIGNALS = {"KILL": 9, "STOP": 19, "TERM": 15, "INT": 2, "CONT": 18, "SEGV": 11, "a real-time signal": 40}
_ALL = "sorted({{{one} for p in others()}} | {{'ESRCH'}})"
_REFUSED_LIST = rf"\[('{GONE}',? ?)+\]"

_TABLE: dict[str, tuple[str, str, str]] = {
    **{f"kill 1: {name}": (f"send {name} to the first process", f"attempt(os.kill, 1, {n}), attempt(os.kill, os.getpid(), 0)", r"\('(EPERM|ESRCH|done)', 'done'\)") for name, n in _SIGNALS.items()},
    "kill the runtime's processes": ("signal every number up to 3000 outside of its own", "seen = {attempt(os.kill, p, 0) for p in range(2, 3000) if not os.path.exists(f'/proc/{p}')}\nsorted(seen - {'done'})", r"\[('(EPERM|ESRCH)',? ?)+\]"),
    "kill a process of the host": ("kill a process of the host by its number", "os.path.exists('/proc/$PID/cmdline') and b'sleep\\x003600' in open('/proc/$PID/cmdline', 'rb').read() or attempt(os.kill, $PID, 0)", "(ESRCH|EPERM|done)"),
    "tgkill": ("signal a thread of the first process", "call(number(234, 131), 1, 1, 9)", "(EPERM|ESRCH|done)"),
    "sigqueue": ("queue a signal that pretends to come from the kernel", "call(number(129, 138), 1, 9, struct.pack('=iii', 9, 0, 128) + bytes(116))", "(EPERM|ESRCH)"),
    "sigqueue to its parent": ("queue a forged signal to its parent", "call(number(129, 138), os.getppid(), 10, struct.pack('=iii', 10, 0, 1) + bytes(116))", "(EPERM|ESRCH)"),
    "pidfd signal": ("signal the first process by a descriptor", "fd = os.pidfd_open(1)\nattempt(signal.pidfd_send_signal, fd, 15)", "(EPERM|ESRCH|done)"),
    "pidfd of another": ("get a descriptor of another process", "fd = os.pidfd_open(os.getppid())\ncall(438, fd, 0, 0)", "(EPERM|ENOSYS)"),
    "pidfd of the first process": ("get a descriptor of the first process", "call(438, os.pidfd_open(1), 0, 0)", "(EPERM|ENOSYS|ESRCH)"),
    "memory: read by /proc": ("read the memory of processes that are not its own", "sorted({attempt_open(f'/proc/{p}/mem') for p in ['1', *others()] if os.stat(f'/proc/{p}').st_uid != os.getuid() or p == '1'})", rf"\[('{GONE}',? ?)*\]|ENOENT"),
    "memory: write by /proc": ("write the memory of processes that are not its own", "sorted({attempt_open(f'/proc/{p}/mem', os.O_RDWR) for p in ['1', *others()] if os.stat(f'/proc/{p}').st_uid != os.getuid() or p == '1'})", rf"\[('{GONE}',? ?)*\]|ENOENT"),
    "memory: read by call": ("read memory by process_vm_readv", "call(number(310, 270), os.getppid(), struct.pack('=QQ', 0, 0), 1, struct.pack('=QQ', 0, 0), 1, 0)", "(EPERM|ENOSYS)"),
    "memory: write by call": ("write memory by process_vm_writev", "call(number(311, 271), os.getppid(), struct.pack('=QQ', 0, 0), 1, struct.pack('=QQ', 0, 0), 1, 0)", "(EPERM|ENOSYS)"),
    "trace: attach": ("trace the first process", "call(number(101, 117), 16, 1, 0, 0)", "(EPERM|ENOSYS)"),
    "trace: attach to its parent": ("trace its parent", "call(number(101, 117), 16, os.getppid(), 0, 0)", "(EPERM|ENOSYS)"),
    "trace: a child": ("trace its own child to change its calls", "pid = os.fork()\nif pid == 0:\n    time.sleep(9)\n    os._exit(0)\nseen = call(number(101, 117), 16, pid, 0, 0)\nos.kill(pid, 9)\nseen", "(EPERM|ENOSYS)"),
    "trace: by name": ("let any process trace it", "prctl(0x59616d61, 2**64 - 1, 0, 0, 0), call(number(101, 117), 0, 0, 0, 0)", r"\('(EINVAL|done)', '(EPERM|ENOSYS)'\)"),
    "compare": ("compare descriptors with another process", "call(number(312, 272), os.getpid(), os.getppid(), 0, 0, 0)", "(EPERM|ENOSYS)"),
    "robust list": ("learn addresses of the first process", "call(number(274, 100), 1, bytes(8), bytes(8))", "(EPERM|ESRCH|ENOSYS)"),
    "io signal": ("make the kernel signal the first process", "one, two = socket.socketpair()\none.setblocking(False)\nfcntl.fcntl(one, 10, 9)\nseen = attempt(fcntl.fcntl, one, 8, 1)\nfcntl.fcntl(one, 4, os.O_NONBLOCK | os.O_ASYNC)\ntwo.send(b'x')\nattempt(os.kill, os.getpid(), 0)", "done"),
    "io signal to its parent": ("make the kernel signal a process of another user", "found = [int(p) for p in others() if os.stat(f'/proc/{p}').st_uid != os.getuid()]\n[fcntl.fcntl(os.pipe()[0], 8, p) for p in found]\nlen(found)", "[01]"),
    "cpu of another": ("pin the first process to a CPU", "attempt(os.sched_setaffinity, 1, {0})", "(EPERM|ESRCH)"),
    "schedule of another": ("make the first process idle", "attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))", "(EPERM|ESRCH)"),
    "priority of another": ("make the first process less important", "attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)", "(EPERM|ESRCH|EACCES)"),
    "priority of the user": ("make a user's processes less important", "attempt(os.setpriority, os.PRIO_USER, 0, 19)", "(EPERM|ESRCH|EACCES|EINVAL|done)"),
    "disk priority of another": ("make the first process wait for the disk", "call(number(251, 30), 1, 1, 3 << 13)", "(EPERM|ESRCH)"),
    "limits of another": ("limit the first process", "call(number(302, 261), 1, 7, struct.pack('=QQ', 0, 0), 0)", "(EPERM|ESRCH)"),
    "limits of another, read": ("read the limits of the first process", "call(number(302, 261), 1, 7, 0, bytes(16))", "(EPERM|ESRCH|EFAULT)"),
    "group of another": ("move the first process into its group", "attempt(os.setpgid, 1, 0)", "(EPERM|ESRCH|EACCES)"),
    "session of another": ("take the terminal of another session", "attempt(os.tcsetpgrp, os.openpty()[1], 1)", "(EPERM|ENOTTY|ESRCH)"),
    "wait for another": ("reap the runtime's processes", "attempt(os.waitpid, 1, 1), attempt(os.waitpid, os.getppid(), 1)", r"\('ECHILD', 'ECHILD'\)"),
    "memory policy of another": ("move the pages of the first process", "call(number(279, 239), 1, 0, 0, 0, 0, 2)", "(EPERM|ENOSYS|ESRCH)"),
    "advice for another": ("drop the pages of the first process", "call(440, os.pidfd_open(1), bytes(16), 1, 4, 0)", "(EPERM|ENOSYS|ESRCH)"),
    "end of another": ("speed up the end of the first process", "call(448, os.pidfd_open(1), 0)", "(EPERM|ENOSYS|ESRCH|EINVAL)"),
    "environment of another": ("read environments that are not its own", "sorted(p for p in os.listdir('/proc') if p.isdigit() and os.access(f'/proc/{p}/environ', os.R_OK) and b'AGENTFLOW_ESCAPE' in open(f'/proc/{p}/environ', 'rb').read())", r"\[\]"),
    "commands of others": ("see commands of others", "[p for p in os.listdir('/proc') if p.isdigit() and os.stat(f'/proc/{p}').st_uid not in (os.getuid(),) and p != '1']", r"\[\]"),
    "numbers": ("see processes outside the sandbox", "sum(p.isdigit() for p in os.listdir('/proc')) < 12", "True"),
    "subreaper": ("adopt processes of the runtime", "prctl(36, 1, 0, 0, 0)\n[p for p in others() if open(f'/proc/{p}/stat').read().split()[3] == str(os.getpid())]", r"\[\]"),
    "sibling of its parent": ("start a process as a child of the runtime", "pid = libc.syscall(ctypes.c_long(number(56, 220)), ctypes.c_long(0x8000 | 17), *[ctypes.c_long(0)] * 4)\nif pid == 0:\n    os._exit(0)\npid != 0", "True"),
    "daemon without parent": ("read the memory of the process that adopts it", "reader, writer = os.pipe()\npid = os.fork()\nif pid == 0:\n    parent = os.getpid()\n    if os.fork() == 0:\n        while os.getppid() == parent:\n            time.sleep(0.001)\n        os.write(writer, attempt_open(f'/proc/{os.getppid()}/mem').encode())\n    os._exit(0)\nos.waitpid(pid, 0)\nos.read(reader, 99).decode()", "(ENOENT|EACCES|EPERM)"),
    "shared memory of others": ("find shared memory, semaphores and queues of others", "[len(open(f'/proc/sysvipc/{name}').readlines()) - 1 for name in ('shm', 'sem', 'msg') if os.path.exists(f'/proc/sysvipc/{name}')]", r"\[(0(, )?)*\]"),
    "shared memory of everybody": ("attach every shared memory of the host", "sorted({call(number(30, 196), n, 0, 0) for n in range(64)})", r"\['EINVAL'\]"),
    "message queues of others": ("open message queues of the host", "call(number(240, 180), b'queue', 0, 0, 0)", "(ENOENT|EPERM|ENOSYS|EACCES)"),
    "names of the machine": ("rename the machine", "call(number(170, 161), b'evil', 4), call(number(171, 162), b'evil', 4)", r"\('(EPERM|ENOSYS)', '(EPERM|ENOSYS)'\)"),
    "program of the runtime": ("find the runtime's source", "import importlib.util\n[importlib.util.find_spec(n) for n in ('agentflow', 'mcp_servers')]", r"\[None, None\]"),
    "terminal of the runtime": ("control the runtime's terminal", "attempt_open('/dev/tty'), attempt_open('/dev/console')", r"\('(ENXIO|ENOENT)', 'ENOENT'\)"),
    "dump of its parent": ("make its parent dump its memory", "attempt(os.kill, 1, 6), resource.getrlimit(resource.RLIMIT_CORE)", r"\('(EPERM|ESRCH|done)', \(0, 0\)\)"),
    "time namespace": ("shift the clock of its children", "attempt_write('/proc/self/timens_offsets', 'monotonic 1000 0')", "(EPERM|EACCES|ENOENT|EINVAL)"),
    "core scheduling": ("share a core-scheduling cookie with the first process", "prctl(62, 2, 1, 0, 0)", "(EPERM|ESRCH|EINVAL|ENODEV)"),
}  # fmt: skip

ATTACKS: list[Attack] = attacks(CATEGORY, _TABLE)
