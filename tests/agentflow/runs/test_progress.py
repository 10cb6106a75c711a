"""Rate, estimated end and failures of a run, and hostile texts in its progress."""

import copy
import json
import re
from html.parser import HTMLParser
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from agentflow.learner import TrainOutcome
from agentflow.runs import (
    Phase,
    ResultRecord,
    RunProgress,
    RunStatus,
    ThroughputMeter,
    failures_text,
    html_card,
    one_line,
    open_terminal,
    progress_table,
    run_table,
    speed_text,
)
from tests.agentflow.cli.test_terminal import CONTROLS, HOSTILE
from tests.agentflow.synthesis.test_display import on_terminal


class _FakeSeconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.promise("supervisor:progress:pace")
def test_the_estimate_follows_from_the_seeds_that_this_process_finished_outside_of_pauses() -> None:
    clock = _FakeSeconds()
    progress = RunProgress(clock)
    progress.seeds, progress.done = 30, 10
    clock.now += 50  # opening resources
    progress.phase = Phase.GROWING
    progress.active = 2
    clock.now += 10
    assert (progress.status().rate, progress.status().remaining) == (0.0, None)
    progress.done = 11
    assert progress.status().remaining is None  # two are in work: one says nothing about the other
    assert progress.status().rate == pytest.approx(0.1)
    progress.phase = Phase.PAUSED
    clock.now += 1000
    assert progress.status().remaining is None
    progress.phase = Phase.GROWING
    clock.now += 10
    progress.done = 12
    status = progress.status()
    assert (status.finished, status.rate) == (2, pytest.approx(0.1))
    assert status.remaining == pytest.approx(180)
    clock.now += 20  # nothing finishes: the estimate grows
    assert progress.status().remaining == pytest.approx(360)
    progress.phase = Phase.WRITING
    assert progress.status().remaining is None


@pytest.mark.promise("supervisor:progress:pace")
def test_the_rate_is_that_of_the_last_two_hundred() -> None:
    clock = _FakeSeconds()
    meter = ThroughputMeter(clock)
    meter.start(0)
    for second in range(1, 601):
        clock.now += 100 if second <= 300 else 1
        meter.record(second)
    assert meter.rate == pytest.approx(1.0)
    assert meter.remaining(50, concurrent=8) == pytest.approx(50)
    assert meter.remaining(0) == 0
    few = ThroughputMeter(clock)
    few.start(5)
    clock.now += 4
    few.record(6)
    few.record(3)  # never falls
    assert few.remaining(1, concurrent=64) == pytest.approx(4)


@pytest.mark.parametrize(
    ("rate", "remaining", "shown"),
    [
        (0.0, None, "–, ETA –"),
        (12.0, 0.2, "12.0/s, ETA 0 s"),
        (0.07, 3900, "4.2/min, ETA 1 h 05 min"),
        (0.01, 95.4, "36.0/h, ETA 1 min 35 s"),
        (1 / 86400, 200_000, "1.0/day, ETA 2 d 07 h"),
        (1e-9, 1e9, "0.0/day, ETA 11574 d 01 h"),
    ],
)
@pytest.mark.promise("supervisor:progress:pace")
def test_speed_reads_in_the_unit_that_fits(rate: float, remaining: float | None, shown: str) -> None:
    assert speed_text(rate, remaining) == shown


@pytest.mark.promise("supervisor:progress:pace")
def test_failures_are_shown_by_kind_the_most_frequent_first() -> None:
    assert failures_text({}) == "none"
    assert (
        failures_text({"tool timeout": 1, "model rate_limited": 3}) == "model rate_limited 3, tool timeout 1"
    )
    assert failures_text({f"kind {n}": 1 for n in range(20)}).endswith("kind 7 1, others 12")


_LONG = f"{HOSTILE}\n" * 20_000
_STATUS = RunStatus(
    phase=Phase.GROWING,
    seeds=3,
    done=1,
    active=2,
    calls_in_flight=1,
    calls_failed=0,
    cost=1.5,
    rate=0.2,
    remaining=10.0,
    failures={f"tool {number} {_LONG}": number for number in range(50)},
)


@pytest.mark.promise("supervisor:progress:hostile")
@pytest.mark.parametrize(("width", "most_lines"), [(20, 400), (40, 90), (200, 20)])
def test_hostile_names_take_few_lines_without_control_characters(width: int, most_lines: int) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system="truecolor")
    with console.capture() as captured:
        console.print(run_table(_STATUS, [_LONG] * 50, seeds=_LONG))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).splitlines()
    assert not any(map(CONTROLS.search, lines))
    assert len(lines) <= most_lines
    assert max(map(len, lines)) <= width
    flat = " ".join(" ".join(lines).split())
    assert "speed" in flat
    assert "failures" in flat


@pytest.mark.promise("supervisor:progress:hostile")
def test_an_unchanged_frame_is_not_written_again_and_a_high_one_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LINES", "5")
    with on_terminal(60, monkeypatch) as closed:
        with open_terminal() as screen:
            for _ in range(50):
                screen.show(progress_table("growing", 3, 1, seeds="first"))
            screen.show(progress_table("growing", 3, 1, seeds="second"))
            screen.show("tall\n" * 100)
        shown = closed()
    # Once more when it is left, to clear it.
    assert (shown.count("first"), shown.count("second"), shown.count("tall")) == (1, 1, 2 * 4)
    assert shown.count("…") == 2


@pytest.mark.promise("supervisor:progress:hostile")
def test_one_line_keeps_the_letters_and_cuts_the_rest() -> None:
    assert one_line("a\tb\r\n  c", 10) == "a b c"
    assert one_line("ünïcödé 漢字 👍", 20) == "ünïcödé 漢字 👍"
    assert one_line("x" * 10_000_000, 5) == "xxxx…"
    assert not CONTROLS.search(one_line(HOSTILE * 1000, 50))


class _Tags(HTMLParser):
    """Tags, attributes and text of a fragment."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.promise("supervisor:notebook")
def test_a_card_is_escaped_small_and_refers_to_nothing() -> None:
    evil = f"</td><script>alert(1)</script><img src=x onerror=alert(2)>{HOSTILE}"
    tags = _Tags()
    tags.feed(card := html_card(evil, [(evil, evil * 1000)] * 500, note=evil))
    assert set(tags.tags) == {"div", "strong", "table", "tr", "th", "td"}
    assert tags.attributes == {"class", "dir", "style", "scope"}
    assert "<script>alert(1)</script>" in tags.text
    assert "460 more" in tags.text
    assert not CONTROLS.search(card)
    assert len(card) < 64_000
    assert not re.search(r"#[0-9a-f]{3}|background:(?!none)|url\(|(?<![-\w])color:", card)


@pytest.mark.promise("supervisor:notebook")
def test_results_are_plain_dictionaries_that_show_themselves() -> None:
    outcome = TrainOutcome(
        steps=3, version=2, figures={"reward/mean": 0.5}, output_dir="<out>", policy="out/policy"
    )
    record = outcome.record()
    assert record == json.loads(json.dumps(record)) == msgspec.to_builtins(outcome)
    assert isinstance(record, ResultRecord)
    shown = record._repr_html_()  # pyright: ignore[reportPrivateUsage] - the name that notebooks call
    assert "&lt;out&gt;" in shown
    assert "reward/mean" in shown
    assert copy.deepcopy(record) == record
