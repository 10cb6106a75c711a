"""Inspection of a workspace for evaluators."""

from typing import Any, cast

import pytest

from tests.mcp_servers.live import Live

WORK = r"""
mkdir -p logs .local/bin && echo hi > logs/a.txt && chmod 750 logs/a.txt && ln -s logs link && : > empty
tar czf logs.tgz logs && gzip -nk logs/a.txt && head -c 40000 /dev/zero | tr '\0' x > long.txt && head -c 9 /dev/zero > zeros
git init -q -b main repo && cd repo && echo x > f && git add f
git -c user.name=Ada -c user.email=ada@example.org commit -qm 'First one' && echo y > g && mkfifo pipe && touch $'odd\xff' && cd ..
"""


def entries(data: dict[str, object]) -> dict[str, dict[str, Any]]:
    """Return the entries of an inspection by path, without missing values."""
    listed = cast("list[dict[str, Any]]", data["files"])
    return {
        entry["path"]: {name: value for name, value in entry.items() if value is not None} for entry in listed
    }


@pytest.mark.promise("bash:inspect")
async def test_an_inspection_shows_files_archives_repositories_and_outputs(live: Live) -> None:
    await live.bash(WORK)
    data = await live.data("bash_inspect", commands=["wc -c < logs/a.txt; exit 3", "sleep 0"])
    files = entries(data)
    digest = files["logs/a.txt"]["sha256"]
    assert files["logs/a.txt"] | {"sha256": ""} == {
        "path": "logs/a.txt", "kind": "file", "size": 3, "mode": "750", "text": "hi\n", "sha256": "",
    }  # fmt: skip
    assert (files["link"]["kind"], files["link"]["target"]) == ("symlink", "logs")
    assert files["logs.tgz"]["members"] == {"logs/a.txt": digest}
    assert files["logs/a.txt.gz"]["unpacked"] == "hi\n"
    assert files["empty"]["text"] == ""
    assert "text" not in files["long.txt"]
    assert "text" not in files["zeros"]
    assert (files["repo/pipe"]["kind"], files["repo/odd\\xff"]["kind"]) == ("other", "file")
    assert not any(path.startswith(("repo/.git", ".local")) for path in files)
    assert data["repositories"] == [
        {"path": "repo", "branch": "main", "commits": ["First one"], "changes": ["?? g", '?? "odd\\377"']}
    ]
    assert data["commands"] == [
        {"command": "wc -c < logs/a.txt; exit 3", "exit_code": 3, "output": "3\n"},
        {"command": "sleep 0", "exit_code": 0, "output": ""},
    ]
    assert data["complete"] is True
    assert (await live.data("bash_inspect", limit=2))["complete"] is False


@pytest.mark.promise("bash:inspect:apart")
async def test_nothing_in_the_session_can_change_an_inspection(live: Live) -> None:
    await live.bash(
        "echo true > told; wc() { echo 99; }; alias cat='echo faked'; export PYTHONSTARTUP=x.py; cd /"
    )
    await live.bash(
        r"""mkdir -p ~/.local/bin ~/git && printf '#!/bin/sh\necho faked' > ~/.local/bin/python3 && chmod +x ~/.local/bin/python3"""
    )
    await live.bash("echo 'raise SystemExit' | tee ~/json.py ~/hashlib.py ~/sitecustomize.py > /dev/null")
    await live.bash(
        "cd ~/git && git init -q . && git config core.fsmonitor 'touch ~/ran' && git config core.hooksPath ~ && cd ~"
    )
    # A program of the workspace kills its parent, and writes into the output of that process.
    attack = "echo faked > /proc/$PPID/fd/1; kill -9 $PPID; kill -9 -1; echo out"
    data = await live.data("bash_inspect", commands=[attack, "wc -l < told", "cat told"])
    assert entries(data)["told"]["text"] == "true\n"
    assert "ran" not in entries(await live.data("bash_inspect"))
    commands = cast("list[dict[str, object]]", data["commands"])
    assert [command["output"] for command in commands[1:]] == ["1\n", "true\n"]


@pytest.mark.promise("bash:inspect:hostile")
async def test_hostile_files_do_not_break_an_inspection(live: Live) -> None:
    await live.bash(
        "printf 'PK\\003\\004junk' > broken.zip; printf '\\037\\213junk' > broken.gz; head -c 512 /dev/urandom > random.tar;"
        "truncate -s 900M sparse; ln -s /etc/passwd secret; ln -s loop loop; cp broken.gz hidden; chmod 000 hidden; mkdir -p a/b/c"
    )
    await live.bash(
        "python3 -c \"import zipfile; z = zipfile.ZipFile('bomb.zip', 'w', 8); z.writestr('zeros', bytes(50_000_000))\""
    )
    files = entries(await live.data("bash_inspect"))
    assert "sha256" not in files["sparse"]
    assert "text" not in files["secret"]
    assert not any("members" in files[name] for name in ("broken.zip", "bomb.zip", "random.tar"))
    kind, message = await live.failure("bash_inspect", commands=["a\0b"])
    assert kind == "bad_arguments"
    assert "\n" not in message
