"""The offline engine: deterministic, without weights or network, over nothing but the text it is shown."""

from agentflow.offline._model import OfflineModel

__all__ = ["OfflineModel"]
