"""Real vLLM whose model says the lines of scripts: `[[script NAME]]` in a prompt names one."""

import json
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from anyio.from_thread import start_blocking_portal

from agentflow.serving import ModelServer, ServingSettings
from tests._vllm import NAME, PYTHON, make_environment, make_tiny_model
from tests.clients._environments import DRIVERS

TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
{% for tool in tools %}{{ tool['function']['name'] }} {% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}
{%- for call in message['tool_calls'] or [] %}
<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
"""Chat template with tool calls. It names the tools only: a script knows them, and descriptions of coding agents are long."""
CONTEXT = 32768


def tool_line(name: str, **arguments: object) -> str:
    """Return a line that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextmanager
def scripted_vllm(scripts: Mapping[str, Sequence[str]]) -> Generator[ModelServer]:
    """Serve a model that says the lines of these scripts."""
    make_environment()
    with tempfile.TemporaryDirectory(prefix="scripted-") as name:
        folder = Path(name)
        make_tiny_model(folder / "model")
        (folder / "scripts.json").write_text(json.dumps(scripts), encoding="utf-8")
        (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
        options = {
            "chat-template": str(folder / "template.jinja"),
            "enable-auto-tool-choice": True,
            "tool-call-parser": "hermes",
            "logits-processors": "scripted_model:ScriptedModel",
            "hf-overrides": json.dumps({"max_position_embeddings": CONTEXT}),
        }
        settings = ServingSettings(
            model=str(folder / "model"),
            name=NAME,
            python=PYTHON,
            device="cpu",
            dtype="float32",
            trains=True,
            max_model_len=CONTEXT,
            options=options,
        )
        environment = {"SCRIPTS": str(folder / "scripts.json"), "PYTHONPATH": str(DRIVERS)}
        with (
            patch.dict(os.environ, environment),
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(ModelServer(settings)) as server,
        ):
            yield server
