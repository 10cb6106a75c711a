"""Serving a model: vLLM as a supervised process in an environment of its own, reached over HTTP.

async with ModelServer(ServingSettings(model="path/of/a/model")) as server:
    settings = ModelSettings(name=server.model, base_url=server.url, api_key=server.key)
"""

from agentflow.serving._server import ModelServer
from agentflow.serving._settings import Device, ServingSettings

__all__ = ["Device", "ModelServer", "ServingSettings"]
