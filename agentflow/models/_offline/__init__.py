"""The offline engine: deterministic, without weights or network, over nothing but the text it is shown."""

from agentflow.models._offline._model import OfflineModel

__all__ = ["OfflineModel"]
