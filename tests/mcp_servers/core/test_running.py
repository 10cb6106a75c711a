"""Helpers of the backends that run programs."""

from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers import CallContext, Output, ResourceLink, Session
from mcp_servers.__main__ import main
from mcp_servers.core._running import (
    RunSettings,
    check_outcome,
    progress_of,
    read_settings,
    sendable,
    shown,
)
from mcp_servers.core._sessions import ResourceStore
from runtimes import Instance, Outcome


class Printed(Output):
    """A printed text."""

    stdout: str
    """The text."""


def session() -> Session:
    async def start() -> Instance:
        raise NotImplementedError

    return Session(
        "handle", "me", start_instance=start, settings={}, resources=ResourceStore(10_000_000), now=0.0
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": -1}, "settings of bash: timeout: input should be greater than 0"),
        ({"timeuot": 1}, "settings of bash: timeuot is unknown; did you mean timeout?"),
        ({"zzz": 1}, "settings of bash: zzz is unknown; known here: output_characters, timeout"),
    ],
)
def test_invalid_settings_are_reported_with_the_valid_names(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ToolFailure) as failure:
        read_settings(RunSettings, "bash", settings)
    assert str(failure.value) == message
    assert failure.value.kind is ErrorKind.BAD_ARGUMENTS


def test_a_run_gets_the_time_it_asks_for_but_less_than_its_call() -> None:
    async def limits() -> None:
        assert CallContext("me").run_seconds() is None
        assert CallContext("me").run_seconds(5.0) == 5.0
        context = CallContext("me", anyio.current_time() + 100)
        assert context.run_seconds(5.0) == 5.0
        left = context.run_seconds()
        assert left is not None
        assert 90 < left < 100
        over = CallContext("me", anyio.current_time() - 1).run_seconds(5.0)
        assert over == 0.0

    anyio.run(limits)


def test_progress_is_not_reported_without_a_listener() -> None:
    assert progress_of(CallContext("me")) is None


@given(st.text(max_size=40), st.lists(st.integers(0, 200), max_size=6))
def test_output_split_anywhere_is_reported_as_the_same_text(text: str, cuts: list[int]) -> None:
    messages: list[str] = []
    report = progress_of(CallContext("me", None, lambda done, total, message: messages.append(message or "")))
    assert report is not None
    data = text.encode()
    positions = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    for start, end in pairwise(positions):
        report("stdout", data[start:end])
    assert "".join(messages) == text


@given(st.text(max_size=600), st.integers(100, 200))
def test_long_text_keeps_its_ends_and_is_kept_whole(text: str, limit: int) -> None:
    home, context = session(), CallContext("me")
    made = shown(text, "stdout.txt", limit, home, context)
    if len(text) <= limit:
        assert (made, context.parts) == (text, [])
        return
    (link,) = context.parts
    assert isinstance(link, ResourceLink)
    kept = home.resources.get(link.uri)
    assert kept is not None
    assert kept.data.decode() == text
    assert made.startswith(text[: limit // 2])
    assert made.endswith(text[-(limit // 2) :])
    assert f"{len(text) - 2 * (limit // 2)} of {len(text)} characters left out" in made


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ENDED, Outcome.INTERRUPTED])
def test_a_completed_run_raises_no_failure(outcome: Outcome) -> None:
    check_outcome("bash_run", outcome, "", "", Printed(stdout=""))


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.OK, Outcome.ENDED, Outcome.INTERRUPTED}))
def test_a_reached_limit_is_a_failure_of_its_kind_with_the_output(outcome: Outcome) -> None:
    with pytest.raises(ToolFailure) as failure:
        check_outcome("bash_run", outcome, "the limit was hit.", "Files are kept.", Printed(stdout="so far"))
    assert failure.value.kind == outcome.value
    assert failure.value.message.endswith(" (the limit was hit). Files are kept.")
    assert failure.value.data == {"stdout": "so far"}


@pytest.mark.promise("backends:settings:checked")
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("bash={timeout: -1}", "settings of bash: "),
        ("code={install: {packages: [rich]}}", "settings of code: "),
        (
            "files={charakters: 10}",
            "key=value: backends.files.charakters is unknown; did you mean characters?",
        ),
    ],
)
def test_a_server_with_invalid_backend_settings_does_not_start(
    setting: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"backends.{setting}"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"mcp_servers: {expected}")
    assert message.count("\n") == 1


def test_text_that_cannot_be_passed_to_a_program_is_refused() -> None:
    assert sendable("bash_run", "ä\0") == "ä\0"
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(ToolFailure, match="cannot be used here") as failure:
            sendable("bash_run", text, without="\0")
        assert failure.value.kind is ErrorKind.BAD_ARGUMENTS
