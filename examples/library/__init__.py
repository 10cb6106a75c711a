"""Parts that the examples share: a tiny model, fine-tuning on a teacher, evaluation, tuning, and the report."""

from examples.library.clients import AgentPolicy, ChatPolicy, ServedPolicy, chat
from examples.library.example import Ask, Example, Messages, Part, part_of
from examples.library.main import main

__all__ = [
    "AgentPolicy",
    "Ask",
    "ChatPolicy",
    "Example",
    "Messages",
    "Part",
    "ServedPolicy",
    "chat",
    "main",
    "part_of",
]
