"""Test utilities: virtual time, faulty actors, a fake model endpoint, scripted roles, a tiny model, worlds of facts."""

from pathlib import Path

from agentflow.testing._actors import (
    EventRecorder,
    Fault,
    FaultyActor,
    FaultyChild,
    InjectedCrash,
    Start,
    VirtualClock,
    VirtualTimeLoop,
    VirtualTimer,
)
from agentflow.testing._scripted_roles import ScriptedRoles
from agentflow.testing._tiny_model import tiny_tokenizer
from agentflow.testing.endpoint import fake_endpoint

__all__ = [
    "TINY_MODEL",
    "EventRecorder",
    "Fault",
    "FaultyActor",
    "FaultyChild",
    "InjectedCrash",
    "ScriptedRoles",
    "Start",
    "VirtualClock",
    "VirtualTimeLoop",
    "VirtualTimer",
    "fake_endpoint",
    "tiny_tokenizer",
]

TINY_MODEL = Path(__file__).with_name("_tiny_model.py")
"""Program that creates a tiny model; run it with a Python that has `torch` and `transformers`."""
