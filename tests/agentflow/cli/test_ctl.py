"""`agentflow ctl` and the control server that it speaks to."""

import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from agentflow.cli import main
from agentflow.journal import this_process
from agentflow.sandbox import SyncSandbox
from agentflow.synthesis import TREES
from agentflow.synthesis.pipeline import CONTROL_FILE
from tests.agentflow.cli._programs import finish, running, until_it_says
from tests.system._supervised import endpoint

SMALL = ("max_depth=2", "depth_threshold=1", "number_of_seed=2")


def ctl(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the output of the command."""
    assert main(["ctl", arguments[0], "--json", "--dir", str(folder), *arguments[1:]]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.promise("supervisor:control")
@pytest.mark.promise("supervisor:control-private")
def test_a_run_is_watched_paused_given_seeds_resumed_and_stopped_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    with (
        endpoint(hold_after=0) as at,
        running("agentflow.supervisor", *at.words, f"output_dir={folder}", *SMALL, cwd=tmp_path) as process,
    ):
        until_it_says(process, "control server")
        file = folder / CONTROL_FILE
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        url = json.loads(file.read_text(encoding="utf-8"))["url"]
        with (
            pytest.raises(Exception, match=r"token|401|denied"),
            SyncSandbox(url, token="guessed") as stranger,
        ):
            stranger.tools()

        assert ctl(capsys, folder, "status")["phase"] == "growing"
        assert ctl(capsys, folder, "pause")["phase"] == "paused"
        added = ctl(capsys, folder, "add", "the lighthouse", "the ferry", "--name", "more")
        assert added["ids"] == ["seed_003", "seed_004"]
        assert (
            ctl(capsys, folder, "add", "the lighthouse", "the ferry", "--name", "more")["ids"] == added["ids"]
        )
        assert ctl(capsys, folder, "status")["seeds"] == 4
        assert main(["ctl", "add", "--dir", str(folder), "--name", "more", "another"]) == 2
        assert "control/more" in capsys.readouterr().err
        assert ctl(capsys, folder, "resume")["phase"] == "growing"
        assert ctl(capsys, folder, "stop")["phase"] in {"growing", "stopping"}
        at.release()
        status, _, err = finish(process)
    assert status == 3
    assert "stopped: requested through its control server" in err
    assert not file.exists()
    assert (folder / TREES).exists()


@pytest.mark.promise("supervisor:control-gone")
def test_an_inactive_run_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "status", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"agentflow: no run is active in {tmp_path} (there is no control.json); name its output_dir with --dir\n"
    )
    file = tmp_path / CONTROL_FILE
    file.write_text(
        json.dumps({"url": "http://127.0.0.1:9/mcp", "token": "x", "pid": os.getpid()}), encoding="utf-8"
    )
    assert main(["ctl", "status", "--dir", str(tmp_path)]) == 1
    assert "it has ended or was killed" in capsys.readouterr().err
    file.write_text("{", encoding="utf-8")
    assert main(["ctl", "status", "--dir", str(tmp_path)]) == 1
    assert "damaged" in capsys.readouterr().err


class ProgressReader(StringIO):
    """Standard output that acts on the first line of the progress that it gets."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act: Callable[[], None] | None = act

    def write(self, text: str, /) -> int:
        if self._act is not None:
            act, self._act = self._act, None
            act()
        return super().write(text)

    def act_next(self, act: Callable[[], None]) -> None:
        """Act on the next line."""
        self._act = act

    def lines(self) -> list[dict[str, Any]]:
        """Return the progress that it got."""
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.mark.promise("supervisor:watch")
def test_a_run_is_watched_over_a_restart_left_alone_by_an_interrupt_and_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    with endpoint(hold_after=0) as at, ExitStack() as stack:
        start = partial(
            running, "agentflow.supervisor", *at.words, f"output_dir={folder}", *SMALL, cwd=tmp_path,
            # With the faster event loop, unlike the other runs.
            python=sys.executable,
        )  # fmt: skip
        processes = [stack.enter_context(start())]
        until_it_says(processes[0], "control server")

        def restart() -> None:
            processes[0].kill()
            processes[0].wait(60)
            processes.append(stack.enter_context(start()))
            reader.act_next(partial(signal.raise_signal, signal.SIGINT))

        reader = ProgressReader(restart)
        monkeypatch.setattr(sys, "stdout", reader)
        assert main(["ctl", "watch", "--json", "--dir", str(folder)]) == 130
        assert processes[1].poll() is None
        assert [line["phase"] for line in reader.lines()] == ["growing", "growing"]
        address = json.loads((folder / CONTROL_FILE).read_text(encoding="utf-8"))
        monkeypatch.setenv("AGENTFLOW_CONTROL_TOKEN", address["token"])
        reader = ProgressReader(at.release)
        monkeypatch.setattr(sys, "stdout", reader)
        assert main(["ctl", "watch", "--json", "--url", address["url"]]) == 0
        last = reader.lines()[-1]
        assert (last["phase"], last["done"], last["finished"]) == ("writing", 2, 2)
        assert last["rate"] > 0
        assert finish(processes[1])[0] == 0
        monkeypatch.undo()
        assert main(["ctl", "watch", "--dir", str(folder)]) == 1
        assert "no run is active" in capsys.readouterr().err


@pytest.mark.promise("supervisor:watch")
def test_a_killed_run_that_does_not_come_back_is_given_up_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / CONTROL_FILE
    gone = this_process().rpartition(":")[0] + ":1"
    address = {"url": "http://127.0.0.1:9/mcp", "token": "x", "process": gone}
    file.write_text(json.dumps(address), encoding="utf-8")
    assert main(["ctl", "watch", "--dir", str(tmp_path), "--patience", "0"]) == 1
    assert f"agentflow: no run responds in {tmp_path}: it was killed" in capsys.readouterr().err
    assert main(["ctl", "watch", "--url", address["url"], "--token", "x"]) == 1
    assert "no run responds at http://127.0.0.1:9/mcp" in capsys.readouterr().err
    monkeypatch.delenv("AGENTFLOW_CONTROL_TOKEN", raising=False)
    assert main(["ctl", "watch", "--url", address["url"]]) == 2
    assert "pass --token, or set AGENTFLOW_CONTROL_TOKEN" in capsys.readouterr().err
    assert main(["ctl", "watch", "--dir", str(tmp_path), "--patience", "nan"]) == 2
    assert "--patience" in capsys.readouterr().err
