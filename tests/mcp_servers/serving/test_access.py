"""Tokens, hosts, origins, rates."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow._loopback import is_loopback
from agentflow.errors import ConfigurationError
from mcp_servers.serving._access import BearerTokens, Origins, RateLimit
from tests.mcp_servers._now import Now


def test_a_token_identifies_its_principal_and_any_other_text_identifies_none() -> None:
    tokens = BearerTokens({"alice": "one", "bob": "two"})
    assert tokens.principal(b"Bearer one") == "alice"
    assert tokens.principal(b"bearer two") == "bob"
    for wrong in (None, b"", b"one", b"Bearer", b"Bearer ", b"Bearer on", b"Basic one", b"Bearer \xff\xfe"):
        assert tokens.principal(wrong) is None


@given(st.binary())
def test_no_header_crashes_the_check(header: bytes) -> None:
    assert BearerTokens({"alice": "one"}).principal(header) in (None, "alice")


def test_a_loopback_server_answers_to_its_own_names_on_its_own_port() -> None:
    origins = Origins("127.0.0.1", 8000)
    assert origins.allow_host(b"127.0.0.1:8000")
    assert origins.allow_host(b"LOCALHOST:8000")
    assert origins.allow_host(b"[::1]:8000")
    for wrong in (None, b"", b"evil.example", b"evil.example:8000", b"localhost", b"localhost:8001", b"\xff"):
        assert not origins.allow_host(wrong)


def test_pages_of_allowed_origins_and_all_programs_may_send_requests() -> None:
    origins = Origins("localhost", 8000, ["https://app.example"])
    for right in (None, b"http://localhost:8000", b"http://127.0.0.1:8000", b"https://app.example"):
        assert origins.allow_origin(right)
    for wrong in (b"null", b"http://localhost:8001", b"https://localhost:8000", b"https://app.example.evil"):
        assert not origins.allow_origin(wrong)


def test_a_server_on_all_addresses_takes_every_host_unless_some_are_named() -> None:
    assert Origins("0.0.0.0", 8000).allow_host(b"box.example:8000")
    named = Origins("0.0.0.0", 8000, hosts=["box.example:8000"])
    assert named.allow_host(b"box.example:8000")
    assert not named.allow_host(b"evil.example:8000")


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("127.evil.example", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_loopback_addresses_are_known(host: str, is_one: bool) -> None:
    assert is_loopback(host) is is_one


def test_a_minute_s_worth_of_requests_may_burst_and_then_one_by_one() -> None:
    now = Now()
    rate = RateLimit(60, clock=now)
    assert [rate.wait("a") for _ in range(60)] == [0.0] * 60
    assert rate.wait("a") == pytest.approx(1.0)
    assert rate.wait("b") == 0.0
    now.seconds = 1.0
    assert rate.wait("a") == 0.0
    assert rate.wait("a") > 0


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 20))
def test_no_more_requests_pass_than_the_rate_allows(pauses: list[float], per_minute: int) -> None:
    now = Now()
    rate = RateLimit(per_minute, clock=now)
    passed = 0
    for pause in pauses:
        now.seconds += pause
        passed += rate.wait("a") == 0.0
    assert passed <= per_minute * (1 + now.seconds / 60) + 1e-6


@pytest.mark.promise("mcp:workers:rate")
def test_servers_with_one_file_share_a_rate(tmp_path: Path) -> None:
    now = Now()
    file = tmp_path / "rates"
    first, second = (RateLimit(60, ["b", "a"], file=file, clock=now) for _ in range(2))
    assert [rate.wait("a") for rate in [first, second] * 30] == [0.0] * 60
    assert first.wait("a") == second.wait("a") == pytest.approx(1.0)
    assert second.wait("b") == 0.0
    now.seconds = 1.0
    assert sorted([first.wait("a"), second.wait("a")]) == [0.0, pytest.approx(1.0)]


@pytest.mark.promise("mcp:workers:rate")
def test_a_file_of_rates_from_before_a_reboot_delays_nobody(tmp_path: Path) -> None:
    now = Now()
    now.seconds = 1e6
    file = tmp_path / "rates"
    assert RateLimit(60, ["a"], file=file, clock=now).wait("a") == 0.0
    now.seconds = 5.0
    assert RateLimit(60, ["a"], file=file, clock=now).wait("a") == 0.0


@pytest.mark.promise("mcp:workers:rate")
def test_a_file_of_rates_that_can_t_be_opened_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^rate_file: .*: Is a directory$"):
        RateLimit(60, ["a"], file=tmp_path)
