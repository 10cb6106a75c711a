"""Model serving: vLLM as a supervised process in its own environment, reached over HTTP. See docs/serving.md.

async with ModelServer(ServingSettings(model="path/of/a/model")) as server:
    settings = ModelSettings(name=server.model, base_url=server.url, api_key=server.key)
"""

from agentflow.serving._control import EngineControl
from agentflow.serving._publishing import Publisher, ReplicaPublisher
from agentflow.serving._server import ModelServer, keep_registered, kept_port
from agentflow.serving._settings import Device, ServingSettings
from agentflow.serving._weights import (
    TOLERANCES,
    Agreement,
    LoadReport,
    Probe,
    ProbeText,
    Published,
    Tolerance,
    Weights,
    WeightsFailure,
    check_folder,
)

__all__ = [
    "TOLERANCES",
    "Agreement",
    "Device",
    "EngineControl",
    "LoadReport",
    "ModelServer",
    "Probe",
    "ProbeText",
    "Published",
    "Publisher",
    "ReplicaPublisher",
    "ServingSettings",
    "Tolerance",
    "Weights",
    "WeightsFailure",
    "check_folder",
    "keep_registered",
    "kept_port",
]
