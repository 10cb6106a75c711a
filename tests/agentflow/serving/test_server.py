"""A served model: a real vLLM on the CPU."""

import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.models import Accounts, Call, Message, Sampling, TextPart, make_model
from agentflow.serving import ModelServer, ServingSettings
from agentflow.serving._settings import command_of, environment_of
from tests._vllm import PYTHON, settings_of
from tests.agentflow.serving._fake_vllm import make_fake_vllm, make_weights
from tests.behaviour._tree import ROOT

pytestmark = pytest.mark.timeout(900)


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", (TextPart(text),)),)


async def status_of(server: ModelServer, key: str) -> int:
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with session.get(f"{server.url}/models", headers=headers) as answer:
            return answer.status


@pytest.mark.promise("serving:answers")
async def test_a_served_model_answers_only_requests_with_its_key(vllm: ModelServer) -> None:
    assert await status_of(vllm, vllm.key) == 200
    assert await status_of(vllm, "") == 401
    assert await status_of(vllm, "another") == 401
    async with make_model(settings_of(vllm), Accounts()) as model:
        call = Call(role="planner", messages=said("Hello."), reply=str, sampling=Sampling(max_tokens=8))
        with pytest.raises(Exception, match="cut at its token limit"):
            await model.complete(call)


@pytest.mark.promise("serving:refuses")
async def test_an_environment_without_vllm_is_named_in_one_line() -> None:
    settings = ServingSettings(model="x", python=Path(sys.executable))
    with pytest.raises(
        ConfigurationError,
        match=r"has no vLLM; `agentflow serve-model --install cpu` \(or cuda\) installs it",
    ):
        async with ModelServer(settings):
            pass


@pytest.mark.promise("serving:refuses")
async def test_a_missing_environment_is_named_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match="there is no /nowhere/python"):
        async with ModelServer(ServingSettings(model="x", python=Path("/nowhere/python"))):
            pass


@pytest.mark.promise("weights:key")
@pytest.mark.parametrize(
    "path", ["pause", "collective_rpc", "update_weight_version", "tokenize", "v1/models"]
)
async def test_a_server_with_weight_updates_answers_nothing_without_its_key(
    path: str, vllm: ModelServer
) -> None:
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"Authorization": "Bearer another"}, {"Authorization": vllm.key}):
            async with session.post(f"{vllm.address}/{path}", json={}, headers=headers) as answer:
                assert answer.status == 401
        async with session.get(f"{vllm.address}/health") as answer:
            assert answer.status == 200


@pytest.mark.promise("serving:refuses")
@pytest.mark.usefixtures("vllm")
async def test_a_gpu_is_refused_with_a_cpu_build() -> None:
    with pytest.raises(ConfigurationError, match="computes on the CPU only; set device=cpu"):
        async with ModelServer(ServingSettings(model="x", python=PYTHON, device="gpu")):
            pass


@pytest.mark.promise("serving:refuses")
@pytest.mark.usefixtures("vllm")
async def test_a_failed_start_reports_the_last_words_of_the_server(tmp_path: Path) -> None:
    log = tmp_path / "serving.log"
    settings = ServingSettings(model=str(tmp_path), name="none", python=PYTHON, device="cpu", log=log)
    with pytest.raises(RunStopped, match="none can't be served: "):
        async with ModelServer(settings):
            pass
    assert "Error" in log.read_text(encoding="utf-8")


@pytest.mark.promise("serving:refuses")
async def test_a_restart_that_fails_names_the_cause_and_the_log(tmp_path: Path) -> None:
    make_fake_vllm(tmp_path)
    weights = make_weights(tmp_path / "model", "0")
    python, log = tmp_path / "python", tmp_path / "engine.log"
    start = (
        f'#!/bin/sh\n[ "$1" != -c ] && [ -e {tmp_path}/gone ] && echo "OSError: weights are gone" && exit 1\n'
    )
    paths = f"PYTHONPATH={tmp_path}:{ROOT}"
    python.write_text(f'{start}{paths} exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    settings = ServingSettings(
        model=str(weights.folder), name="policy", python=python, device="cpu", trains=True, log=log
    )
    async with ModelServer(settings) as server:
        (tmp_path / "gone").touch()
        with pytest.raises(RunStopped) as stopped:
            await server.restart()
    assert stopped.value.message == (
        f"policy did not start again: OSError: weights are gone; its log is {log}"
    )


@pytest.mark.promise("serving:safetensors")
@pytest.mark.parametrize(
    ("model", "options", "formats"),
    [("m", {}, ["safetensors"]), ("m.gguf", {}, []), ("m", {"load-format": "dummy"}, ["dummy"])],
)
def test_only_formats_without_code_are_loaded_unless_another_is_named(
    model: str, options: dict[str, object], formats: list[str]
) -> None:
    settings = ServingSettings(model=model, max_model_len=64, options=options)
    words = command_of(settings, 1, cpu=True)
    assert [words[place + 1] for place, word in enumerate(words) if word == "--load-format"] == formats


@pytest.mark.promise("serving:gpus")
@pytest.mark.parametrize(("gpus", "visible"), [(None, "0,1,2"), ([1, 2], "1,2")])
def test_a_model_uses_the_gpus_of_its_settings(gpus: list[int] | None, visible: str) -> None:
    settings = ServingSettings(model="m", gpus=gpus)
    environment = environment_of(settings, "key", {"CUDA_VISIBLE_DEVICES": "0,1,2"}, cpu=False)
    assert environment["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.promise("serving:tools")
@pytest.mark.parametrize(
    ("template", "more", "words"),
    [
        ("{{ messages }}", {}, []),
        ("{% if tools %}<tool_call>", {}, ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]),
        (
            "{{ tools }}<tool_call><function=",
            {},
            ["--enable-auto-tool-choice", "--tool-call-parser", "qwen3_xml"],
        ),
        ("{{ tools }}[TOOL_CALLS]", {}, ["--enable-auto-tool-choice", "--tool-call-parser", "mistral"]),
        ("{{ tools }}<tool_call>", {"tool_parser": ""}, []),
        ("", {"tool_parser": "olmo3"}, ["--enable-auto-tool-choice", "--tool-call-parser", "olmo3"]),
        ("", {"reasoning_parser": "qwen3"}, ["--reasoning-parser", "qwen3"]),
    ],
)
def test_tool_calls_are_parsed_as_the_chat_template_writes_them(
    tmp_path: Path, template: str, more: dict[str, Any], words: list[str]
) -> None:
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    found = command_of(ServingSettings(model=str(tmp_path), max_model_len=64, **more), 1, cpu=True)
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser")
    kept = [
        word for place, word in enumerate(found) if word in flags or (place and found[place - 1] in flags[1:])
    ]
    assert kept == words
    given = tmp_path / "given.jinja"
    given.write_text("{{ tools }}<|python_tag|>", encoding="utf-8")
    other = ServingSettings(model=str(tmp_path), max_model_len=64, options={"chat-template": str(given)})
    assert "llama3_json" in command_of(other, 1, cpu=True)
