"""Code that runs inside a session and misbehaves when its fork moves into its new sandbox.

It finds the runtime's code in the interpreter that it runs in, as hostile code would, and replaces the runtime's move by
its own. It logs what it sees to a file of the parent that it keeps open.
"""

PRELUDE = """
import ctypes, errno, os, resource, signal, socket, sys, threading, time
frame = sys._getframe()
while "fork_copy" not in frame.f_globals:
    frame = frame.f_back
loop_globals = frame.f_globals
broker, confine, sc = loop_globals["_seccomp_broker"], loop_globals["_confine"], loop_globals["sc"]
libc = ctypes.CDLL(None, use_errno=True)
log_fd = os.open("/home/agent/log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
POWER = confine.FORK_CAPABILITIES
ROOT_MOUNT = confine.ROOT_MOUNT
FIRST_FD = broker.first_namespace_fd(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
CHANNELS = broker.first_channel_fd(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

def log(what):
    os.write(log_fd, f"{what}\\n".encode())

def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def raise_power():
    sc.capset(effective=POWER, permitted=POWER)

def enter(number):
    sc.setns(FIRST_FD + number, confine.NAMESPACE_KINDS[number])

def enter_all():
    for number in range(4):
        enter(number)

def forget_namespaces():
    os.closerange(FIRST_FD, FIRST_FD + 4)

def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)

def lower_power(**sets):
    sc.capset(**{"effective": 0, "permitted": POWER, **sets})
    sc.prctl(sc.PR_SET_DUMPABLE, 1)

def close_all(control, keep=()):
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2, control):
        os.dup2(null, fd)
    for fd in range(3, 1024):
        if fd != control and fd not in keep:
            attempt(os.close, fd)

def be_checked(control):
    sc.setns(-1, 0)
    for offset, fd in enumerate((control, 1, 2)):
        os.dup2(CHANNELS + offset, fd, inheritable=fd != control)
        os.close(CHANNELS + offset)
    return []

def honest(uid, control, keep=(), **sets):
    raise_power()
    enter_all()
    confine.enter_root()
    forget_namespaces()
    become(uid)
    lower_power(**sets)
    close_all(control, keep)
    return be_checked(control)
"""
"""Building blocks of hostile moves; `honest` is the move that the runtime makes."""
