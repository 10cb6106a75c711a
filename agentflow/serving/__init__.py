"""Model serving: vLLM as a supervised process in its own environment, reached over HTTP. See docs/serving.md.

async with ModelServer(ServingSettings(model="path/of/a/model")) as server:
    settings = ModelSettings(name=server.model, base_url=server.url, api_key=server.key)
"""

from agentflow.serving._control import EngineControl
from agentflow.serving._engine_environment import EngineBuild, install_engine
from agentflow.serving._known_models import (
    KNOWN_MODELS,
    FetchedDtype,
    KnownModel,
    fetch_model,
    fetched_folder,
)
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
    "KNOWN_MODELS",
    "TOLERANCES",
    "Agreement",
    "Device",
    "EngineBuild",
    "EngineControl",
    "FetchedDtype",
    "KnownModel",
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
    "fetch_model",
    "fetched_folder",
    "install_engine",
    "keep_registered",
    "kept_port",
]
