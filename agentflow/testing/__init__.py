"""For tests: virtual time, children that fail as told, a watch on supervisors, a fake endpoint of models."""

from agentflow.testing._faults import Fault, FaultyActor, FaultyChild, InjectedCrash, Start
from agentflow.testing._recorder import EventRecorder
from agentflow.testing._virtual_time import VirtualClock, VirtualTimeLoop, VirtualTimer
from agentflow.testing.endpoint import fake_endpoint

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
    "fake_endpoint",
]
