"""The kernel: channels, actors, supervisors.

Everything that runs longer than a call is a supervised child: started in order, restarted after a failure, and stopped
in reverse order. See docs/actors.md.
"""

from agentflow.actors._actor import Actor
from agentflow.actors._channel import Channel, ChannelStatistics, Receiver, Sender
from agentflow.actors._child import Child, Context, FunctionChild, Process
from agentflow.actors._children import ChildCounts, ChildInfo, ChildState
from agentflow.actors._clock import SYSTEM_CLOCK, Clock, SystemClock, Timer
from agentflow.actors._errors import (
    ActorError,
    ActorGone,
    AskTimeout,
    ChannelClosed,
    ChannelEnded,
    ChildActive,
    ChildExists,
    ProcessEnded,
    RestartLimitReached,
    Shutdown,
    StartFailed,
    StartTimeout,
    SupervisorGone,
    UnknownChild,
    WouldBlock,
)
from agentflow.actors._events import (
    ChildEnded,
    ChildStarted,
    ExitKind,
    ExitReason,
    Observer,
    RestartPlanned,
    SupervisorEnding,
    SupervisorEvent,
)
from agentflow.actors._specs import AutoShutdown, Backoff, ChildSpec, Restart, Strategy
from agentflow.actors._supervisor import DynamicSupervisor, Supervisor
from agentflow.actors._tasks import Hosted, computed, together

__all__ = [
    "SYSTEM_CLOCK",
    "Actor",
    "ActorError",
    "ActorGone",
    "AskTimeout",
    "AutoShutdown",
    "Backoff",
    "Channel",
    "ChannelClosed",
    "ChannelEnded",
    "ChannelStatistics",
    "Child",
    "ChildActive",
    "ChildCounts",
    "ChildEnded",
    "ChildExists",
    "ChildInfo",
    "ChildSpec",
    "ChildStarted",
    "ChildState",
    "Clock",
    "Context",
    "DynamicSupervisor",
    "ExitKind",
    "ExitReason",
    "FunctionChild",
    "Hosted",
    "Observer",
    "Process",
    "ProcessEnded",
    "Receiver",
    "Restart",
    "RestartLimitReached",
    "RestartPlanned",
    "Sender",
    "Shutdown",
    "StartFailed",
    "StartTimeout",
    "Strategy",
    "Supervisor",
    "SupervisorEnding",
    "SupervisorEvent",
    "SupervisorGone",
    "SystemClock",
    "Timer",
    "UnknownChild",
    "WouldBlock",
    "computed",
    "together",
]
