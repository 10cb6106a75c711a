"""Log events are one line each, with fields and without secrets."""

import io
import json
import logging

import pytest

from agentflow.telemetry import configure_logging, get_logger


@pytest.fixture
def stream() -> io.StringIO:
    # A fixture of another module may have set the level of the package; the suite restores it.
    logging.getLogger("agentflow").setLevel(logging.NOTSET)
    return io.StringIO()


@pytest.mark.promise("telemetry:lines")
def test_an_event_is_one_json_line_with_its_fields(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    get_logger("agentflow.x").info("session started", backend="bash\nzsh", count=3)
    event = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert (event["event"], event["backend"], event["count"]) == ("session started", "bash\nzsh", 3)
    assert (event["level"], event["logger"]) == ("info", "agentflow.x")


@pytest.mark.promise("telemetry:lines")
def test_logs_of_other_libraries_have_the_same_format(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    logging.getLogger("elsewhere").warning("%d things", 2, extra={"where": "there"})
    event = json.loads(stream.getvalue())
    assert (event["event"], event["where"], event["logger"]) == ("2 things", "there", "elsewhere")


@pytest.mark.promise("telemetry:lines")
def test_an_exception_stays_on_the_line_of_its_event(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    try:
        raise ValueError("odd")
    except ValueError:
        get_logger("agentflow.x").exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert "ValueError: odd" in json.loads(stream.getvalue())["exception"]


@pytest.mark.promise("telemetry:lines")
def test_a_terminal_gets_text(stream: io.StringIO) -> None:
    configure_logging(stream=stream, json=False)
    get_logger("agentflow.x").info("session started", backend="bash")
    assert "session started" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.promise("telemetry:level")
def test_events_below_the_level_are_not_logged(stream: io.StringIO) -> None:
    configure_logging("warning", stream=stream)
    get_logger("agentflow.x").info("not this")
    get_logger("agentflow.x").warning("but this")
    assert json.loads(stream.getvalue())["event"] == "but this"


@pytest.mark.promise("telemetry:secrets")
def test_secret_fields_are_masked_and_others_are_not(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    get_logger("agentflow.x").info(
        "call", token="t-1", api_key="k-1", Authorization="Bearer b-1", tokens=7, key="a"
    )
    assert not any(secret in stream.getvalue() for secret in ("t-1", "k-1", "b-1"))
    event = json.loads(stream.getvalue())
    assert (event["tokens"], event["key"]) == (7, "a")
