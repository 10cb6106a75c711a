"""Files: paths of the host, /proc, devices, links, attributes and tricks with the overlay."""

from tests.attacks._table import Attack, attacks

CATEGORY = "files"
CLOSED = "(ENOENT|EACCES|EPERM)"
FIXED = "(EROFS|EACCES|EPERM|ENOENT)"

_PROC_OF_FIRST = {
    "environ": "environment", "mem": "memory", "maps": "address space", "smaps": "memory usage", "root/etc/passwd": "root", "cwd": "folder",
    "exe": "program", "fd/0": "descriptors", "fdinfo/0": "descriptor details", "ns/mnt": "mount namespace", "ns/user": "user namespace",
    "stack": "kernel stack", "syscall": "current call", "pagemap": "pages", "auxv": "addresses", "io": "disk usage", "limits": "limits",
    "mountinfo": "mounts", "net/tcp": "network", "task/1/mem": "memory of its thread", "map_files": "mapped files",
    "personality": "flags", "timers": "timers", "attr/current": "security label", "cgroup": "cgroups", "wchan": "wait",
}  # fmt: skip
_PROC_WRITES = {
    "/proc/1/clear_refs": "1", "/proc/1/oom_score_adj": "1000", "/proc/1/oom_adj": "15", "/proc/1/comm": "evil", "/proc/1/coredump_filter": "255",
    "/proc/1/uid_map": "0 0 1", "/proc/1/setgroups": "allow", "/proc/1/autogroup": "19", "/proc/1/timerslack_ns": "1",
    "/proc/1/make-it-fail": "1", "/proc/1/loginuid": "0",
}  # fmt: skip
_OWN_WRITES = {
    "/proc/self/uid_map": ("0 0 1", "map root to itself", "EPERM"),
    "/proc/self/gid_map": ("0 0 1", "map the group of root to itself", "EPERM"),
    "/proc/self/projid_map": ("0 0 1", "map projects", "EPERM"),
    "/proc/self/oom_score_adj": ("-1000", "never be killed when memory is short", "EACCES"),
    "/proc/self/autogroup": ("-20", "raise the priority of its group", "(EPERM|EACCES|ENOENT|EAGAIN)"),
    "/proc/self/loginuid": ("0", "log in as root for the audit", "(EPERM|EACCES|EINVAL|ENOENT|done)"),
}
_GLOBAL = (
    "kcore", "kmsg", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup", "sysrq-trigger", "timer_list", "slabinfo", "vmallocinfo",
    "modules", "iomem", "ioports", "interrupts", "config.gz", "sched_debug", "keys", "key-users", "swaps", "partitions", "diskstats",
    "mtrr", "acpi", "bus/pci", "scsi/scsi", "irq/default_smp_affinity", "fs/ext4", "driver", "asound", "latency_stats", "crypto",
    "dynamic_debug", "sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/kernel/ns_last_pid",
    "sys/vm/overcommit_memory", "sys/vm/drop_caches", "sys/fs/binfmt_misc/register", "sys/fs/suid_dumpable", "sys/kernel/randomize_va_space",
    "sys/kernel/hotplug", "sys/kernel/unprivileged_bpf_disabled", "sys/user/max_user_namespaces", "pressure/memory",
)  # fmt: skip
_DEVICES = (
    "mem", "kmem", "port", "kmsg", "console", "tty0", "tty1", "vda", "sda", "loop0", "loop-control", "fuse", "kvm", "mapper/control",
    "vhost-net", "userfaultfd", "uinput", "input/event0", "snapshot", "btrfs-control", "dri/card0", "nvidia0", "rtc0", "watchdog",
    "hpet", "cpu/0/msr", "vfio/vfio", "autofs", "cuse", "ppp", "binder", "mqueue", "hugepages",
)  # fmt: skip
_SYSTEM = ("/usr/bin/env", "/usr/bin/bash", "/usr/lib/os-release", "/etc/ld.so.cache", "/usr/bin/python3")
_CHANGES = {
    "truncate": "os.truncate, {path!r}, 0",
    "write": "os.open, {path!r}, os.O_WRONLY",
    "remove": "os.unlink, {path!r}",
    "rename": "os.rename, {path!r}, {path!r} + '.old'",
    "set rights of": "os.chmod, {path!r}, 0o4777",
    "set the owner of": "os.chown, {path!r}, os.getuid(), -1",
    "set the times of": "os.utime, {path!r}, (0, 0)",
    "label": "os.setxattr, {path!r}, 'user.evil', b'x'",
}


def _devices() -> dict[str, tuple[str, str, str]]:
    return {
        f"device {name}": (f"open /dev/{name}", f"attempt_open('/dev/{name}', os.O_RDWR)", "(ENOENT|EACCES|EPERM|ENXIO)")
        for name in _DEVICES
    }  # fmt: skip


_TABLE: dict[str, tuple[str, str, str]] = {
    **{f"/proc/1/{name}": (f"read the {what} of the first process", f"fd = os.open('/proc/1/{name}', os.O_RDONLY)\n'done' if os.path.isdir('/proc/1/{name}') and os.listdir(fd) else os.read(fd, 64)", "(ENOENT|EACCES|EPERM|EISDIR|False)") for name, what in _PROC_OF_FIRST.items()},
    **{f"write {path}": (f"write to {path}", f"attempt_write('{path}', '{text}')", "(ENOENT|EACCES|EPERM|EINVAL)") for path, text in _PROC_WRITES.items()},
    **{f"write {path}": (aim, f"attempt_write('{path}', '{text}')", seen) for path, (text, aim, seen) in _OWN_WRITES.items()},
    **{f"/proc/{name}": (f"open the kernel's /proc/{name}", f"sorted({{attempt_open('/proc/{name}'), attempt_open('/proc/{name}', os.O_WRONLY)}})", rf"\[('{CLOSED}',? ?)+\]") for name in _GLOBAL},
    **_devices(),
    **{f"{verb} {path}": (f"{verb} a system file", f"attempt({call.format(path=path)})", "(EROFS|EACCES|EPERM|ENOENT|EXDEV)") for path in _SYSTEM[:2] for verb, call in _CHANGES.items()},
    **{f"read the host's {path}": ("read a file of the host", f"attempt_open('{path}')", CLOSED) for path in ("$MARKER", "$HOME_MARKER", "$HOST_FOLDER", "/root", "/root/.ssh", "/etc/shadow-", "/etc/sudoers", "/etc/ssh", "/boot", "/sys/kernel", "/sys/fs/cgroup", "/run/secrets", "/.dockerenv", "/host", "/old", "/skeleton", "/proc/1/root$MARKER")},
    **{f"write into the host's {path}": ("create a file on the host", f"attempt(os.open, '{path}/evil', os.O_CREAT | os.O_WRONLY)", FIXED) for path in ("$HOST_FOLDER", "$PREFIX", "/usr/lib", "/sys", "/proc", "/dev", "/boot")},
    "link: out of the root": ("leave the root by a link", "os.symlink('/../../../../..$MARKER', 'out')\nattempt_open('out')", "ENOENT"),
    "link: dots": ("leave the root by dots", "attempt_open('../' * 200 + '$MARKER'[1:])", "ENOENT"),
    "link: by its own root": ("leave the root by /proc/self/root", "attempt_open('/proc/self/root/..$MARKER'), attempt_open('/proc/self/cwd/../../..$MARKER')", r"\('ENOENT', 'ENOENT'\)"),
    "link: by a descriptor": ("leave the root by a descriptor of the root", "fd = os.open('/', os.O_PATH)\nattempt(lambda: os.open('../../..$MARKER', 0, dir_fd=fd)), os.readlink(f'/proc/self/fd/{fd}')", r"\('ENOENT', '/'\)"),
    "link: magic": ("open another process's file by a magic link", "sorted({attempt_open(f'/proc/{p}/{n}') for p in others() for n in ('root', 'cwd', 'exe', 'fd/0')} - {'done'}) if False else sorted({attempt_open(f'/proc/1/{n}') for n in ('root', 'cwd', 'exe', 'fd/0', 'fd/3')})", rf"\[('{CLOSED}',? ?)+\]"),
    "link: hard": ("give itself a system file by a hard link", "sorted({attempt(os.link, path, 'own') for path in ('/usr/bin/env', '/etc/passwd', '/dev/null')})", r"\[('(EXDEV|EPERM|EACCES|EROFS)',? ?)+\]"),
    "link: hard by a descriptor": ("give itself a file by a hard link to a descriptor", "fd = os.open('/usr/bin/env', os.O_RDONLY)\ncall(number(265, 37), fd, b'', -100, b'own', 0x1000)", "(EXDEV|EPERM|ENOENT|EACCES)"),
    "link: unnamed file": ("link an unnamed file into a system folder", "fd = os.open('.', os.O_TMPFILE | os.O_RDWR)\nattempt(lambda: os.link(f'/proc/self/fd/{fd}', '/usr/bin/evil', follow_symlinks=True))", "(EXDEV|EROFS|EACCES|EPERM)"),
    "link: loop": ("hang by a loop of links", "os.symlink('b-loop', 'a-loop')\nos.symlink('a-loop', 'b-loop')\nattempt_open('a-loop')", "ELOOP"),
    "link: folder": ("link a folder hard", "os.mkdir('folder-x')\nattempt(os.link, 'folder-x', 'folder-y')", "(EPERM|EACCES)"),
    "exchange a system folder": ("exchange a system folder with its own", "os.mkdir('own-usr')\ncall(number(316, 276), -100, b'own-usr', -100, b'/usr', 2)", "(EXDEV|EBUSY|EACCES|EPERM|EINVAL|EROFS)"),
    "move its home": ("move its home away", "attempt(os.rename, '/home/agent', '/tmp/agent'), os.path.isdir('/home/agent')", r"\('(EBUSY|EACCES|EPERM|EXDEV)', True\)"),
    "overlay: opaque": ("hide a system folder from others", "sorted({attempt(os.setxattr, path, name, b'y') for path in ('.', '/usr') for name in ('trusted.overlay.opaque', 'trusted.overlay.redirect', 'trusted.overlay.metacopy')})", r"\[('(EPERM|ENOTSUP|EOPNOTSUPP|EACCES|EROFS)',? ?)+\]"),
    "overlay: redirect": ("redirect a folder of the overlay", "os.mkdir('redirected')\nattempt(os.setxattr, 'redirected', 'user.overlay.redirect', b'/usr'), os.listdir('redirected')", r"\('(EPERM|ENOTSUP|EOPNOTSUPP|done)', \[\]\)"),
    "overlay: whiteout": ("create a whiteout", "attempt(os.mknod, 'gone', stat.S_IFCHR, 0), call(number(133, -1), b'gone2', 0o20000, 0)", r"\('EPERM', '(EPERM|ENOSYS)'\)"),
    "overlay: upper folder": ("reach the upper layer by its name on the host", "[line for line in open('/proc/self/mountinfo') if 'upperdir=' in line and os.path.exists(line.split('upperdir=')[1].split(',')[0].split()[0])]", r"\[\]"),
    "file capabilities": ("give a program capabilities", "import shutil\nshutil.copy('/usr/bin/env', 'power')\nattempt(os.setxattr, 'power', 'security.capability', struct.pack('=5I', 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0))", "(EPERM|ENOTSUP|EOPNOTSUPP)"),
    "set-user-id": ("gain an id by a set-user-id program", "import shutil\nshutil.copy('/usr/bin/id', 'own-id')\nos.chmod('own-id', 0o6755)\nsubprocess.run(['./own-id', '-u'], capture_output=True, text=True).stdout.strip() == str(os.getuid())", "True"),
    "owner": ("give a file to root", "open('given', 'w').close()\nattempt(os.chown, 'given', 0, 0)", "(EPERM|EINVAL)"),
    "devices by every call": ("make device nodes", "sorted({attempt(os.mknod, f'node{n}', mode, os.makedev(*device)) for n, (mode, device) in enumerate([(0o20666, (1, 1)), (0o20666, (1, 3)), (0o60666, (254, 0)), (0o20666, (10, 229)), (0o60666, (7, 0))])}), call(number(259, 33), -100, b'node', 0o20666 | 1 << 32, 259)", r"\(\['EPERM'\], 'EPERM'\)"),
    "inherited descriptors": ("use a descriptor of the runtime", "sorted({os.readlink(f'/proc/{os.getppid()}/fd/{n}').split(':')[0] for n in os.listdir(f'/proc/{os.getppid()}/fd')} - {'pipe', 'socket', '/dev/null', 'anon_inode'} ) if os.access(f'/proc/{os.getppid()}/fd', os.R_OK) else []", r"\[('/(home/agent|proc/\d+/fd|tmp)[^']*',? ?)*\]"),
    "folders as descriptors": ("leave by a folder that the runtime left open", "[n for n in os.listdir('/proc/self/fd') if os.path.isdir(f'/proc/self/fd/{n}') and attempt(lambda: os.open('../../../..$MARKER', 0, dir_fd=int(n))) == 'done']", r"\[\]"),
    "open by handle": ("open a file by its number on the disk", "call(number(304, 265), os.open('/', 0), struct.pack('=Ii', 8, 1) + struct.pack('=II', 2, 0) + bytes(120), 0)", "(EPERM|ENOSYS)"),
    "terminals": ("open a terminal of another process", "sorted(set(os.listdir('/dev/pts')) - {'ptmx'})", r"\[\]"),
    "mounts of the host": ("find paths of the host in the list of mounts", "text = open('/proc/self/mountinfo').read()\n[path for path in ('$HOST_FOLDER', '$HOME_MARKER') if path in text]", r"\[\]"),
    "freeze": ("freeze a file system", "sorted({attempt(fcntl.ioctl, os.open(path, os.O_RDONLY), 0xC0045877) for path in ('/', '/usr', '.')})", r"\[('(EPERM|ENOTTY|EOPNOTSUPP|EACCES)',? ?)+\]"),
    "immutable": ("make a file immutable so that it stays", "open('kept', 'w').close()\nattempt(fcntl.ioctl, os.open('kept', os.O_RDONLY), 0x40086602, struct.pack('=I', 0x10))", "(EPERM|ENOTTY|EOPNOTSUPP)"),
    "blocks": ("learn the blocks of a file on the disk", "attempt(fcntl.ioctl, os.open('/usr/bin/env', 0), 1, struct.pack('=i', 0))", "(EPERM|EINVAL|ENOTTY|EOPNOTSUPP)"),
    "sys is empty": ("see devices and cgroups in /sys", "os.listdir('/sys')", r"\[\]"),
    "lock a system file": ("stop others from locking a shared file", "attempt(fcntl.lockf, os.open('/usr/bin/env', os.O_RDWR), 2)", "(EROFS|EACCES|EPERM|ETXTBSY)"),
    "lease on a system file": ("hold a lease on a shared file", "attempt(fcntl.fcntl, os.open('/usr/bin/env', 0), 1024, 0)", "(EACCES|EAGAIN|EPERM|EINVAL)"),
    "core dumps": ("make the host's core-dump program run", "open('/proc/sys/kernel/core_pattern').read() if os.path.exists('/proc/sys/kernel/core_pattern') else resource.getrlimit(resource.RLIMIT_CORE)", r"\(0, 0\)"),
}  # fmt: skip

ATTACKS: list[Attack] = attacks(CATEGORY, _TABLE)
