"""Names are those of the published conventions, as the package of OpenTelemetry has them, or begin with `agentflow.`."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from agentflow.models._model import provider_of
from agentflow.models._providers import PROVIDERS
from agentflow.models._settings import ModelSettings
from agentflow.telemetry import conventions

IN_THEIR_OWN_REPOSITORY = {
    "gen_ai.client.inference.duration",
    "gen_ai.client.inference.operation.input_tokens",
    "gen_ai.client.inference.operation.output_tokens",
    "gen_ai.evaluation.result",
    "gen_ai.execute_tool.duration",
    "gen_ai.invoke_agent.duration",
    "plan",
}
"""Names that the package lacks: events, and what was added after the conventions moved to `semantic-conventions-genai`."""
PROVIDERS_OF_OURS = {"dashscope", "ollama", "openrouter", "together", "vllm"}
"""Providers without a value in the conventions, which allow others."""


SEMCONV = "opentelemetry.semconv"
GEN_AI = import_module(f"{SEMCONV}._incubating.attributes.gen_ai_attributes")
GENERAL = [import_module(f"{SEMCONV}.attributes.{name}_attributes") for name in ("error", "server")]


def values_of(module: ModuleType) -> Iterator[str]:
    """Return the texts of the constants of a module."""
    for name, value in vars(module).items():
        if name.isupper() and isinstance(value, str):
            yield value


@pytest.mark.promise("tracing:conventions")
def test_every_name_is_in_the_published_conventions_or_is_marked_as_ours() -> None:
    published = {name for module in (GEN_AI, *GENERAL) for name in values_of(module)}
    named = {name for name in values_of(conventions) if "." in name} - {conventions.VERSION}
    ours = {name for name in named if name.startswith("agentflow.")}
    assert named - ours - published == {name for name in IN_THEIR_OWN_REPOSITORY if "." in name}


@pytest.mark.promise("tracing:conventions")
def test_operations_and_providers_have_their_published_values() -> None:
    operations = {each.value for each in GEN_AI.GenAiOperationNameValues}
    emitted = {conventions.PLAN, *conventions.DURATIONS}
    assert emitted <= operations | IN_THEIR_OWN_REPOSITORY
    providers = {each.value for each in GEN_AI.GenAiProviderNameValues}
    found = {provider_of(ModelSettings(name=f"{name}/m")) for name in PROVIDERS}
    assert found - providers == PROVIDERS_OF_OURS
