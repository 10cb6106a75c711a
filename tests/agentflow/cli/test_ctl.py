"""`agentflow ctl` and the control server that it speaks to."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from agentflow.cli import main
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
