"""The command's own words."""

import pytest

from agentflow.cli import main, synth


@pytest.mark.promise("cli:help")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["synth", "--help"], ["ctl", "--help"], ["ctl", "add", "--help"]]
)
def test_every_command_describes_itself(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: agentflow" in capsys.readouterr().out


@pytest.mark.promise("cli:help")
def test_the_help_of_a_run_documents_its_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        synth(["--help"], prog="python -m agentflow.supervisor")
    shown = capsys.readouterr().out
    assert "usage: python -m agentflow.supervisor" in shown
    for status in ("0    done", "1    failed", "2    the settings", "3    stopped early", "130  interrupted"):
        assert status in shown


@pytest.mark.promise("cli:usage")
@pytest.mark.parametrize(
    "arguments", [[], ["sing"], ["ctl"], ["ctl", "add"], ["synth", "--resume", "perhaps"]]
)
def test_wrong_usage_has_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
