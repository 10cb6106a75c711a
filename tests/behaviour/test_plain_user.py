"""The ordinary user of the tests is unprivileged and can use the project."""

from tests._plain_user import PlainUser


def test_the_plain_user_is_not_root_and_can_import_the_project(plain_user: PlainUser) -> None:
    run = plain_user.run_python(
        "import os, agentflow, runtimes, anyio; print(os.geteuid() != 0, os.getcwd(), dict(os.environ))"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"True {plain_user.home} ")
    assert "PIP_" not in run.stdout


def test_the_plain_user_has_a_range_of_ids_to_map(plain_user: PlainUser) -> None:
    run = plain_user.run("sh", "-c", "grep -c ^$USER: /etc/subuid /etc/subgid")
    assert run.stdout.split() == ["/etc/subuid:1", "/etc/subgid:1"]
