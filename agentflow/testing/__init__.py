"""For tests of what is built on the kernel: virtual time, children that fail as told, a watch on supervisors."""

from agentflow.testing._faults import Fault, FaultyActor, FaultyChild, InjectedCrash, Start
from agentflow.testing._recorder import EventRecorder
from agentflow.testing._virtual_time import VirtualClock, VirtualTimeLoop, VirtualTimer

__all__ = [
    "EventRecorder",
    "Fault",
    "FaultyActor",
    "FaultyChild",
    "InjectedCrash",
    "Start",
    "VirtualClock",
    "VirtualTimeLoop",
    "VirtualTimer",
]
