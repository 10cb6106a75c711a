"""The command's own words."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

import agentflow
from agentflow.cli import main, synth
from agentflow.compat import ajet
from agentflow.extras import DISTRIBUTION
from mcp_servers.__main__ import main as mcp_servers

supervisor = partial(synth, prog="python -m agentflow.supervisor")


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
    ("program", "arguments", "begins"),
    [
        (main, ["sing"], "agentflow: error: argument COMMAND: invalid choice: 'sing'"),
        (main, ["synth", "--mode", "fast"], "agentflow synth: error: unrecognized arguments: --mode"),
        (main, ["synth", "--resume", "perhaps"], "agentflow synth: error: argument --resume: invalid choice"),
        (
            main,
            ["synth", "max_depth"],
            "agentflow synth: error: max_depth: neither a settings file nor key=value",
        ),
        (main, ["synth", "--config"], "agentflow synth: error: argument --config: expected one argument"),
        (main, ["eval"], "agentflow eval: error: the following arguments are required: NAME"),
        (
            main,
            ["eval", "all", "--limit", "a\nb"],
            "agentflow eval: error: argument --limit: 'a\\nb' is no number",
        ),
        (main, ["ctl"], "agentflow ctl: error: the following arguments are required: ACTION"),
        (main, ["ctl", "add"], "agentflow ctl add: error: the following arguments are required: SEED"),
        (supervisor, ["--resume"], "python -m agentflow.supervisor: error: argument --resume: expected one"),
        (supervisor, ["--mode"], "python -m agentflow.supervisor: error: unrecognized arguments: --mode"),
        (ajet, ["--backbone", "trinty"], "ajet: error: argument --backbone: invalid choice: 'trinty'"),
        (mcp_servers, ["--log-level", "loud"], "python -m mcp_servers: error: argument --log-level: invalid"),
        (mcp_servers, ["--prot", "1"], "python -m mcp_servers: error: unrecognized arguments: --prot"),
    ],
)
def test_wrong_usage_is_one_line_with_status_2(
    program: Callable[[Sequence[str]], int],
    arguments: list[str],
    begins: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        program(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(begins)
    assert line.endswith(f"; see {begins.partition(': error')[0]} --help")


@pytest.mark.promise("cli:help")
def test_without_a_command_the_help_is_shown_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for command in ("synth", "rollout", "eval", "train", "doctor", "extras"):
        assert f"\n    {command} " in shown.err


@pytest.mark.promise("cli:version")
def test_the_version_has_one_source(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"agentflow {agentflow.__version__}\n"
    assert version(DISTRIBUTION) == agentflow.__version__


@pytest.mark.promise("cli:completion")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["syn"], ["synth"]),
        (["synth", "--resume", "a"], ["auto", "always"]),
        (["extras", "a"], ["add"]),
        (["ctl", "add", "--na"], ["--name"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["rollout", "--config", "tas"], ["tasks.yaml"]),
    ],
)
def test_bash_completes_commands_options_and_choices(
    words: list[str], completed: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tasks.yaml").touch()
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    # As bash does when the user presses the tabulator.
    ask = f"""{script}
        COMP_WORDS=(agentflow "$@"); COMP_CWORD=$#
        "$(complete -p agentflow | sed 's/.* -F //; s/ .*//')"
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    run = subprocess.run(
        ["bash", "-c", ask, "bash", *words], cwd=tmp_path, capture_output=True, encoding="utf-8", check=True
    )
    assert run.stdout.split() == completed


@pytest.mark.promise("cli:completion")
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("synth", "extras", "--print-config" if shell == "zsh" else "print-config", "always"):
        assert word in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "/dev/stdin"], input=script, check=True, encoding="utf-8")


@pytest.mark.promise("cli:config")
@pytest.mark.parametrize("command", ["synth", "rollout", "train"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["run.yaml", "run_dir=b"],
        ["run_dir=b", "--json", "run.yaml"],
        ["--config", "run.yaml", "run_dir=b"],
        ["run_dir=b", "--config=run.yaml"],
    ],
)
def test_a_settings_file_may_be_anywhere_among_the_arguments(
    command: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("output_dir: a\n", encoding="utf-8")
    words = [word.replace("run_dir", "output_dir") for word in arguments]
    assert main([command, "--print-config", *words]) == 0
    assert "output_dir: b\n" in capsys.readouterr().out


@pytest.mark.promise("cli:config")
def test_a_second_settings_file_and_a_missing_one_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["synth", "run.yaml"]) == 2
    assert capsys.readouterr().err == "agentflow: run.yaml: no such file\n"
    with pytest.raises(SystemExit, match="2"):
        main(["synth", "a.yaml", "--config", "b.yaml"])
    assert "a.yaml and b.yaml: only one settings file can be given" in capsys.readouterr().err


@pytest.mark.promise("supervisor:notes")
def test_a_run_says_what_it_searches_and_what_it_ignores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("papers").mkdir()
    Path("papers/light.md").write_text(
        "# Light\nThe light of Varn was lit by Ada Lind in 1790.", encoding="utf-8"
    )
    Path("papers/chart.png").write_bytes(b"")
    Path("seeds.jsonl").write_text(
        '{"content": "the light", "kwargs": {"domain": "sea", "top_k": 1}}\n{"content": "Varn"}\n',
        encoding="utf-8",
    )
    Path("run.yaml").write_text(
        "{seeds_file: seeds.jsonl, resource_init_configs: {rag: {index_path: papers}}, max_depth: 1, min_depth: 1}",
        encoding="utf-8",
    )
    assert main(["synth", "run.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [
        "rag: 1 document of papers, 1 file skipped (.png)",
        "the offline engine understands only the sentence patterns of the bundled corpus; set model_name to write questions about other documents",
        "kwargs that no tool takes, in 1 of 2: domain",
    ]
