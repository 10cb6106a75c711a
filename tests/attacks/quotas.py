"""Quotas: memory, files, processes, and objects of the kernel that all users share."""

from tests.attacks._table import Attack, attacks

CATEGORY = "quotas"
_WRITE = "import errno\nfd = os.open('full', os.O_CREAT | os.O_WRONLY)\ndef fill():\n    while True:\n        os.write(fd, bytes(1 << 20))\nseen = attempt(fill)\nos.unlink('full')\n"

_TABLE: dict[str, tuple[str, str, str]] = {
    "disk: one file": ("fill the disk by one file", f"{_WRITE}seen", "(ENOSPC|EFBIG|EDQUOT|ENOMEM)"),
    "disk: deleted file": ("fill the disk by a file without a name", "fd = os.open('.', os.O_TMPFILE | os.O_WRONLY)\ndef fill():\n    while True:\n        os.write(fd, bytes(1 << 20))\nattempt(fill)", "(ENOSPC|EFBIG|EDQUOT|ENOMEM)"),
    "disk: reserved": ("reserve more than the disk", "fd = os.open('reserved', os.O_CREAT | os.O_WRONLY)\nseen = attempt(os.posix_fallocate, fd, 0, 1 << 40)\nos.unlink('reserved')\nseen", "(ENOSPC|EFBIG|ENOMEM|EINVAL)"),
    "disk: temporary folder": ("fill /tmp beyond the disk", "fd = os.open('/tmp/full', os.O_CREAT | os.O_WRONLY)\ndef fill():\n    while True:\n        os.write(fd, bytes(1 << 20))\nseen = attempt(fill)\nos.unlink('/tmp/full')\nseen", "(ENOSPC|EFBIG|EDQUOT|ENOMEM)"),
    "disk: shared memory": ("fill /dev/shm beyond the disk", "fd = os.open('/dev/shm/full', os.O_CREAT | os.O_WRONLY)\ndef fill():\n    while True:\n        os.write(fd, bytes(1 << 20))\nseen = attempt(fill)\nos.unlink('/dev/shm/full')\nseen", "(ENOSPC|EFBIG|EDQUOT|ENOMEM)"),
    "disk: large file": ("make a sparse file beyond the file limit", "fd = os.open('sparse', os.O_CREAT | os.O_RDWR)\nseen = attempt(os.ftruncate, fd, 1 << 42), attempt(os.pwrite, fd, b'x', 1 << 42)\nos.unlink('sparse')\nseen", r"\('(EFBIG|EINVAL)', '(EFBIG|ENOSPC)'\)"),
    "files: number": ("use up the number of files", "os.mkdir('many')\ndef fill():\n    for n in range(10**7):\n        os.close(os.open(f'many/{n}', os.O_CREAT))\nseen = attempt(fill)\nsubprocess.run(['rm', '-rf', 'many'])\nseen", "ENOSPC"),
    "files: links": ("use up the number of files by links", "os.mkdir('links')\ndef fill():\n    for n in range(10**7):\n        os.symlink('x', f'links/{n}')\nseen = attempt(fill)\nsubprocess.run(['rm', '-rf', 'links'])\nseen", "ENOSPC"),
    "files: attributes": ("store data in attributes beyond the disk", "open('labels', 'w').close()\nnumber_of = 0\ndef fill():\n    global number_of\n    for number_of in range(10**4):\n        os.setxattr('labels', f'user.{number_of}', bytes(60000))\nseen = attempt(fill)\nos.unlink('labels')\nseen", "(ENOSPC|ENOTSUP|EOPNOTSUPP|EPERM|E2BIG)"),
    "files: long name": ("use a name that is too long", "attempt(os.mkdir, 'x' * 256), attempt(os.mkdir, 'x/' * 4000)", r"\('ENAMETOOLONG', '(ENAMETOOLONG|ENOENT)'\)"),
    "open files": ("open more files than allowed", "count(lambda: os.open('/dev/null', 0), 10**5) <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]", "True"),
    "open files by messages": ("keep files open in socket buffers", "one, two = socket.socketpair()\none.setblocking(False)\nfd = os.open('/dev/null', 0)\ncount(lambda: one.sendmsg([b'x'], [(1, 1, struct.pack('=64i', *[fd] * 64))]), 10**5) < 5000", "True"),
    "memory: one process": ("take more memory than the limit", "pid = os.fork()\nif pid == 0:\n    attempt_memory = []\n    try:\n        while True:\n            attempt_memory.append(bytearray(b'x') * (1 << 22))\n    except MemoryError:\n        os._exit(3)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", "(3|-9)"),
    "memory: locked": ("lock memory beyond the limit", "page = mmap.mmap(-1, 1 << 28)\nlibc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page))), ctypes.c_size_t(1 << 28))", "-1|ENOMEM"),
    "memory: memfd": ("keep more memory in unnamed files than the limit of a file", "fd = os.memfd_create('m')\nattempt(os.posix_fallocate, fd, 0, 1 << 42)", "(EFBIG|ENOMEM|ENOSPC|EINVAL|ENOSYS)"),
    "memory: huge pages": ("take huge pages of the machine", "fd = os.memfd_create('h', 4)\nos.ftruncate(fd, 1 << 30)\nattempt(mmap.mmap, fd, 1 << 30)", "(ENOMEM|EINVAL|EPERM|EFBIG|ENOENT|ENODEV|ENOSYS)"),
    "memory: shared memory": ("make shared memory beyond the limit", "ids = [libc.shmget(n + 1, ctypes.c_size_t(1 << 40), 0o1600) for n in range(4)]\nids", r"\[(-1(, )?)+\]|\[(\d+(, )?)+\]"),
    "memory: pipes": ("keep memory in large pipes", "attempt(fcntl.fcntl, os.pipe()[0], 1031, 1 << 26)", "(EPERM|EINVAL|EBUSY)"),
    "memory: stack": ("grow the stack without an end", "pid = os.fork()\nif pid == 0:\n    resource.setrlimit(resource.RLIMIT_STACK, (resource.getrlimit(resource.RLIMIT_STACK)[1],) * 2)\n    def deep(n):\n        return deep(n + 1)\n    try:\n        deep(0)\n    except RecursionError:\n        os._exit(3)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])", "(3|-9|-11|1)"),
    "processes: number": ("start more processes than allowed", "def make():\n    pid = os.fork()\n    if pid == 0:\n        time.sleep(15)\n        os._exit(0)\n    return pid\nkept = []\ntry:\n    while len(kept) < 2000:\n        kept.append(make())\nexcept OSError:\n    pass\n[os.kill(pid, 9) for pid in kept]\nlen(kept) < 64", "True"),
    "processes: threads": ("start more threads than allowed", "stop = threading.Event()\nn = count(lambda: threading.Thread(target=stop.wait, daemon=True).start(), 2000)\nstop.set()\nn < 64", "True"),
    "processes: zombies": ("keep ended processes", "kept = []\ntry:\n    while len(kept) < 2000:\n        pid = os.fork()\n        if pid == 0:\n            os._exit(0)\n        kept.append(pid)\nexcept OSError:\n    pass\nlen(kept) < 64", "True"),
    "kernel: inotify instances": ("use up the user's inotify instances", "n = count(lambda: libc.inotify_init1(0) + 1 or os.close(-1), 5000)\nn < 128", "True"),
    "kernel: inotify watches": ("use up the user's inotify watches", "fd = libc.inotify_init1(0)\nos.mkdir('watched')\ndef watch():\n    name = f'watched/{time.monotonic_ns()}'\n    os.mkdir(name)\n    if libc.inotify_add_watch(fd, name.encode(), 0xFFF) < 0:\n        raise OSError\nn = count(watch, 10**6)\nsubprocess.run(['rm', '-rf', 'watched'])\nn < 10**6", "True"),
    "kernel: timers": ("use up the user's timers", "n = count(lambda: call(number(222, 107), 1, bytes(64), bytes(8)) == 'done' or os.close(-1), 10**5)\nn <= 1100", "True"),
    "kernel: queued signals": ("use up the user's queued signals", "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\nvalue = struct.pack('=iii', 40, 0, -1) + bytes(116)\nn = count(lambda: call(number(129, 138), os.getpid(), 40, value) == 'done' or os.close(-1), 10**5)\nn <= 1100", "True"),
    "kernel: message queues": ("use up the user's message queues", "n = count(lambda: call(number(240, 180), b'q%d' % time.monotonic_ns(), 0o102, 0o600, 0) == 'done' or os.close(-1), 10**4)\nn < 64", "True"),
    "kernel: locked shared memory": ("lock shared memory", "ids = [libc.shmget(0, ctypes.c_size_t(1 << 24), 0o1600)]\nsorted({call(number(31, 195), n, 11, 0) for n in ids if n >= 0} | {'ENOMEM'})", r"\[('(EPERM|ENOMEM)',? ?)+\]"),
    "kernel: terminals": ("use up the machine's terminals", "n = count(os.openpty, 10**4)\nn <= 64", "True"),
    "kernel: keys": ("use up the user's keys", "call(number(248, 217), b'user', b'k', b'v', 1, -3)", "(EPERM|ENOSYS)"),
    "kernel: user namespaces": ("use up the user's namespaces", "call(number(272, 97), 0x10000000)", "(EPERM|ENOSYS)"),
    "kernel: asynchronous input and output": ("use up the machine's requests of kernel AIO", "call(number(206, 0), 65536, bytes(8))", "(EPERM|ENOSYS)"),
    "kernel: epoll watches": ("use up the user's epoll watches", "poll = select.epoll()\npipes = []\ndef watch():\n    pipe = os.pipe()\n    poll.register(pipe[0])\nn = count(watch, 10**6)\nn < 1024", "True"),
    "kernel: pipes": ("use up the user's pipe memory", "n = count(os.pipe, 10**5)\nn < 1024", "True"),
    "semaphores": ("use semaphores of the host", "sorted({call(number(66, 191), n, 0, 2, bytes(104)) for n in range(64)})", r"\['EINVAL'\]"),
    "locks": ("hold many locks on one file", "fd = os.open('locked', os.O_CREAT | os.O_RDWR)\ndef lock():\n    for n in range(5000):\n        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 2 * n)\nattempt(lock)", "(done|ENOLCK)"),
    "leases": ("hold leases on its files", "fd = os.open('leased', os.O_CREAT | os.O_RDONLY)\nattempt(fcntl.fcntl, fd, 1024, 0)", "(done|EAGAIN|EACCES)"),
    "epoll nesting": ("nest epoll deeper than the kernel allows", "polls = [select.epoll() for n in range(20)]\nseen = {attempt(polls[n].register, polls[n + 1].fileno()) for n in range(19)}\nsorted(seen - {'done'})", r"\['(ELOOP|EINVAL)'(, '(ELOOP|EINVAL)')?\]"),
    "file limit": ("raise the limit of a file", "seen = 'done'\ntry:\n    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\nexcept ValueError as error:\n    seen = 'refused'\nseen", "refused"),
    "number of processes": ("raise the limit of processes", "seen = 'done'\ntry:\n    resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))\nexcept (ValueError, OSError) as error:\n    seen = 'refused'\nseen", "refused"),
    "number of open files": ("raise the limit of open files", "seen = 'done'\ntry:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (10**6, 10**6))\nexcept (ValueError, OSError) as error:\n    seen = 'refused'\nseen", "refused"),
    "core files": ("raise the limit of core files", "seen = 'done'\ntry:\n    resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))\nexcept (ValueError, OSError) as error:\n    seen = 'refused'\nseen", "refused"),
    "real time": ("raise the limit of real-time priority", "seen = 'done'\ntry:\n    resource.setrlimit(resource.RLIMIT_RTPRIO, (99, 99))\nexcept (ValueError, OSError) as error:\n    seen = 'refused'\nseen", "refused"),
    "niceness": ("raise the limit of niceness", "seen = 'done'\ntry:\n    resource.setrlimit(resource.RLIMIT_NICE, (40, 40))\nexcept (ValueError, OSError) as error:\n    seen = 'refused'\nseen", "refused"),
}  # fmt: skip

ATTACKS: list[Attack] = attacks(CATEGORY, _TABLE)
