"""How a fork of the keeper becomes a Python session."""

import os
import sys
from typing import NoReturn

from runtimes.docker.inside._places import HOME, LIBRARY
from runtimes.process.inside import _guest
from runtimes.process.inside._evaluate import Evaluator
from runtimes.process.trusted import _confine, _spawn, _wire, _zygote


def become_python(world: _spawn.World, placement: _spawn.Placement, fds: list[int]) -> NoReturn:
    """Become a session. `fds`: control, stdout, stderr, and a letter with the environment."""
    control, stdout, stderr, letter = fds
    env = _wire.open_letter(letter)["env"]
    _spawn.place(world, placement, python=True)
    _confine.take_standard_streams(None, stdout, stderr)
    os.dup2(control, _guest.CONTROL_FD)
    _confine.close_from(3, keep=[_guest.CONTROL_FD])
    os.chdir(HOME)
    os.environ.clear()
    os.environ.update(env)
    sys.path.remove(LIBRARY)
    _zygote.forget_own_modules()
    _zygote.reseed()
    _guest.Guest(_guest.CONTROL_FD, Evaluator()).serve()
