"""Conversion of a forked init process into a Python session."""

import os
import sys
from typing import NoReturn

from runtimes.docker.inside._paths import HOME, LIBRARY
from runtimes.process.inside import _session_loop
from runtimes.process.inside._evaluate import PythonEvaluator
from runtimes.process.trusted import _confine, _spawn, _wire, _zygote


def become_python(
    config: _spawn.RuntimeConfig, placement: _spawn.ProcessPlacement, fds: list[int]
) -> NoReturn:
    """Become a session. `fds`: control, stdout, stderr, and a payload with the environment."""
    control, stdout, stderr, payload = fds
    env = _wire.read_payload(payload)["env"]
    _spawn.enter_sandbox(config, placement, python=True)
    _confine.set_standard_streams(None, stdout, stderr)
    os.dup2(control, _session_loop.CONTROL_FD)
    _confine.close_from(3, keep=[_session_loop.CONTROL_FD])
    os.chdir(HOME)
    os.environ.clear()
    os.environ.update(env)
    sys.path.remove(LIBRARY)
    _zygote.forget_own_modules()
    _zygote.reseed()
    _session_loop.SessionLoop(_session_loop.CONTROL_FD, PythonEvaluator()).serve()
