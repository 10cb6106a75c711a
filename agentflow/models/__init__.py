"""Language models: one protocol, typed calls, engines behind it."""

from agentflow.models._protocol import Call, Completion, Image, Message, Model, Part, Sampling, Text

__all__ = ["Call", "Completion", "Image", "Message", "Model", "Part", "Sampling", "Text"]
