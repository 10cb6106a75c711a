"""Page about the gateway: its commands run, and its tables name all fields."""

import re
import subprocess
from pathlib import Path

import anyio
import pytest

from agentflow.gateway._chat import ChatBody, CompletionsBody
from agentflow.gateway._dialect import StrictBody
from agentflow.gateway._images import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS, MAX_IMAGES, MAX_PIXELS, MAX_SEGMENTS
from agentflow.gateway._messages import MessagesBody
from agentflow.gateway._responses import ResponsesBody
from tests.agentflow.gateway._scripted_calls import KEY, ScriptedCalls, answer, scripted_server

PAGE = (Path(__file__).parents[3] / "docs/gateway.md").read_text(encoding="utf-8")


def fields_in(section: str) -> dict[str, set[str]]:
    """Return the fields of the next table after a text, by treatment."""
    table = PAGE[PAGE.index(section) :].split("\n\n", 2)[1]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return {treatment: set(re.findall(r"`(\w+)`", fields)) - {"format"} for treatment, fields in rows}


@pytest.mark.promise("gateway:fields:ignored")
@pytest.mark.parametrize(
    ("section", "body"),
    [("Chat completions (", ChatBody), ("Responses:\n", ResponsesBody), ("Messages:\n", MessagesBody)],
)
def test_the_page_names_the_treatment_of_each_field(section: str, body: type[StrictBody]) -> None:
    found = fields_in(section)
    assert found["no effect"] == set(body.IGNORED)
    assert found["refused"] - {"modalities"} == set(body.REFUSED)
    assert {name for names in found.values() for name in names} == set(body.__struct_fields__)


@pytest.mark.promise("gateway:fields:ignored")
def test_completions_have_the_fields_that_the_page_names() -> None:
    sampling = fields_in("Chat completions (")["sampling"] - {"max_completion_tokens"}
    named = {"model", "prompt", "best_of", "echo", "logprobs", "suffix", "user", "stream", "stream_options"}
    assert set(CompletionsBody.__struct_fields__) == sampling | named


@pytest.mark.promise("gateway:apis:curl")
async def test_the_commands_of_the_page_run() -> None:
    commands = re.findall(r"```sh\n((?:IMAGE=\S+\n)?curl .*?)```", PAGE, re.DOTALL)
    calls = ScriptedCalls([answer(number, "Hello!") for number in range(len(commands))])
    async with scripted_server(calls) as url:
        for command in commands:
            environment = {"BASE_URL": f"{url}/v1", "API_KEY": KEY, "PATH": "/usr/bin:/bin"}
            ran = await anyio.run_process(["sh", "-c", command], env=environment, stderr=subprocess.STDOUT)
            assert b"Hello!" in ran.stdout, ran.stdout
    assert len(calls.calls) == len(commands) == 5
    assert [len(call.images) for call in calls.calls] == [0, 0, 0, 0, 1]


@pytest.mark.promise("gateway:images:bounds")
def test_the_page_names_the_limits_of_images() -> None:
    table = PAGE[PAGE.index("| Refused | Status |") :].split("\n\n", 1)[0]
    for limit in (
        f"more than {MAX_IMAGES} images",
        f"more than {MAX_IMAGE_BYTES >> 20} MiB in an image",
        f"more than {MAX_IMAGE_PIXELS:,} pixels in an image, or {MAX_PIXELS:,} in a conversation",
        f"its first {MAX_SEGMENTS:,} segments",
    ):
        assert limit in table
