"""File operations from outside: content, rights, and no way out of the sandbox."""

import os
from collections.abc import AsyncIterator
from functools import partial

import anyio
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import CannotFork
from runtimes import FileInfo, Instance, InstanceSpec, Limits
from runtimes.process import ProcessRuntime
from tests._plain_user import PlainUser
from tests.runtimes.process.hearing import Ear

HOME = "/home/agent"


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    instance = await runtime.start()
    yield instance
    await instance.stop()


async def shell(instance: Instance, script: str) -> str:
    result = await instance.exec(["bash", "-c", script])
    assert result.exit_code == 0, result
    return result.stdout.decode()


# -- reading and writing --------------------------------------------------------------------------------


@pytest.mark.promise("instances:files:content")
async def test_written_content_is_read_back(instance: Instance) -> None:
    data = bytes(range(256)) * 20_000
    await instance.write("deep/er/data", data)
    assert await instance.read("deep/er/data") == data
    assert await instance.read(f"{HOME}/deep/../deep/er/data", offset=255, length=2) == b"\xff\0"
    assert await instance.read("deep/er/data", offset=len(data) + 1) == b""
    await instance.write("deep/er/data", b"")
    assert await instance.read("deep/er/data") == b""


@pytest.mark.promise("instances:files:content")
async def test_appending_adds_to_the_end(instance: Instance) -> None:
    await instance.write("log/today", b"one\n", append=True)
    await instance.write("log/today", b"two\n", append=True)
    assert await instance.read("log/today") == b"one\ntwo\n"


@pytest.mark.promise("instances:files:content")
async def test_an_invalid_position_is_refused(instance: Instance) -> None:
    await instance.write("file", b"abc")
    for offset, length in ((-1, None), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            await instance.read("file", offset=offset, length=length)


@pytest.mark.promise("instances:files:content")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.text(
        st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80
    ).filter(lambda name: name not in (".", "..") and len(name.encode()) <= 255),
    data=st.binary(max_size=2000),
)
async def test_any_valid_file_name_works(instance: Instance, name: str, data: bytes) -> None:
    await instance.write(f"any/{name}", data)
    assert await instance.read(f"any/{name}") == data
    assert [info.path for info in await instance.list("any")] == [f"{HOME}/any/{name}"]
    assert (await instance.stat(f"any/{name}")).size == len(data)
    await instance.remove(f"any/{name}")


@pytest.mark.promise("instances:files:content")
async def test_a_name_may_be_undecodable_and_as_long_as_the_kernel_allows(instance: Instance) -> None:
    for name in ("not text \udcff", "n" * 255, "é" * 127):
        await instance.write(name, b"x")
        assert await instance.read(name) == b"x"
    assert await shell(instance, "ls -A | wc -l") == "3\n"


@pytest.mark.promise("instances:files:rights")
async def test_files_belong_to_the_sandbox_user_and_can_be_made_executable(instance: Instance) -> None:
    await instance.write("run", b"#!/bin/sh\necho ran\n", executable=True)
    await instance.write("plain", b"")
    await instance.make_directory("folder")
    output = await shell(instance, "stat -c '%U %a' run plain folder; ./run")
    assert output == "agent 755\nagent 644\nagent 755\nran\n"


@pytest.mark.promise("instances:files:replace")
async def test_a_file_is_replaced_atomically_and_keeps_its_mode(instance: Instance) -> None:
    await shell(instance, "echo old > file; chmod 777 file; ln file other")
    async with await instance.open_stream(["sh", "-c", "exec 3<file; echo open; read x; cat <&3"]) as reader:
        answers = reader.receive()
        await anext(answers)
        await instance.write("file", b"new\n")
        await reader.send(b"\n")
        assert await anext(answers) == ("stdout", b"old\n")
    assert await shell(instance, "cat file other; stat -c %a file; ls -A") == "new\nold\n777\nfile\nother\n"


@pytest.mark.promise("instances:files:replace")
async def test_a_write_that_does_not_fit_leaves_the_old_file(runtime: ProcessRuntime) -> None:
    instance = await runtime.start(InstanceSpec(limits=Limits(disk_bytes=8 << 20, file_bytes=6 << 20)))
    await instance.write("file", b"old")
    await instance.write("filler", bytes(5 << 20))
    for size, message in ((5 << 20, "No space"), (7 << 20, "too large")):
        with pytest.raises(OSError, match=message) as caught:
            await instance.write("file", bytes(size))
        assert caught.value.filename == "file"
    assert await instance.read("file") == b"old"
    assert [info.path for info in await instance.list()] == [f"{HOME}/file", f"{HOME}/filler"]
    await instance.stop()


@pytest.mark.promise("instances:files:replace")
async def test_concurrent_writes_never_mix(instance: Instance) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(instance.write, "shared", bytes([number]) * 300_000)
    content = await instance.read("shared")
    assert (len(content), len(set(content))) == (300_000, 1)
    assert len(await instance.list()) == 1


# -- rights ---------------------------------------------------------------------------------------------


@pytest.mark.promise("instances:files:rights")
async def test_file_operations_have_the_rights_of_the_sandbox_user(instance: Instance) -> None:
    await shell(instance, "echo x > unreadable; chmod 222 unreadable; echo x > fixed; chmod 444 fixed")
    await shell(
        instance,
        "mkdir closed; touch closed/file; chmod 000 closed; mkdir kept; touch kept/file; chmod 555 kept",
    )
    with pytest.raises(PermissionError, match="unreadable"):
        await instance.read("unreadable")
    for append in (False, True):
        with pytest.raises(PermissionError, match="fixed"):
            await instance.write("fixed", b"y", append=append)
    with pytest.raises(PermissionError, match="closed"):
        await instance.list("closed")
    with pytest.raises(PermissionError, match="closed/file"):
        await instance.stat("closed/file")
    with pytest.raises(PermissionError, match="kept/new"):
        await instance.write("kept/new", b"")
    with pytest.raises(PermissionError, match="kept"):
        await instance.remove("kept", recursive=True)
    with pytest.raises(PermissionError, match="kept/file"):
        await instance.move("kept/file", "stolen")


@pytest.mark.promise("instances:files:rights")
@pytest.mark.parametrize("path", ["/etc/passwd", "/usr/bin/env", "/bin/new", "/proc/1/comm"])
async def test_files_that_the_sandbox_user_cannot_change_stay(instance: Instance, path: str) -> None:
    with pytest.raises(OSError, match=r"Permission denied|Read-only|No such file"):
        await instance.write(path, b"mine")


# -- not a regular file ------------------------------------------------------------------------------------


@pytest.mark.promise("instances:files:errors")
async def test_errors_come_from_the_kernel_and_name_the_path(instance: Instance) -> None:
    await instance.write("file", b"x")
    await instance.write("folder/file", b"x")
    with pytest.raises(FileNotFoundError) as missing:
        await instance.read('missing\'s "file"')
    assert missing.value.filename == f'{HOME}/missing\'s "file"'
    with pytest.raises(IsADirectoryError, match="folder"):
        await instance.read("folder")
    with pytest.raises(IsADirectoryError, match="folder"):
        await instance.write("folder", b"")
    for wrong in (instance.read("file/below"), instance.write("file/below", b""), instance.list("file")):
        with pytest.raises(NotADirectoryError, match="file"):
            await wrong
    for gone in (
        instance.stat("gone"),
        instance.list("gone"),
        instance.remove("gone"),
        instance.move("gone", "a"),
    ):
        with pytest.raises(FileNotFoundError, match=f"{HOME}/gone"):
            await gone
    with pytest.raises(OSError, match="not empty"):
        await instance.remove("folder")
    with pytest.raises(OSError, match="too long"):
        await instance.write("n" * 256, b"")


@pytest.mark.promise("instances:files:errors")
@pytest.mark.parametrize("path", ["a\0b", "\ud800", "a/" * 3000])
async def test_an_invalid_path_is_refused(instance: Instance, path: str) -> None:
    for ask in (
        instance.read(path),
        instance.write(path, b""),
        instance.list(path),
        instance.move("a", path),
    ):
        with pytest.raises(OSError, match=r"not a valid path|No such file"):
            await ask


@pytest.mark.promise("instances:files:special")
@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/null"])
async def test_only_regular_files_are_read_and_written(instance: Instance, path: str) -> None:
    await shell(instance, "mkfifo pipe")
    with pytest.raises(OSError, match="not a regular file"):
        await instance.read(path)
    with pytest.raises(OSError, match="not a regular file"):
        await instance.write(path, b"x")
    assert (await instance.stat(path)).kind == "other"


# -- links ----------------------------------------------------------------------------------------------


@pytest.mark.promise("instances:files:links")
async def test_links_lead_only_to_files_inside(instance: Instance) -> None:
    await shell(
        instance,
        "mkdir a; ln -s a/file good; ln -s ../../../../../../etc/passwd up; ln -s loop loop; ln -s / top",
    )
    await instance.write("good", b"through the link")
    assert await instance.read("a/file") == b"through the link"
    assert b"agent:" in await instance.read("up")
    assert await instance.read("up") == await instance.read("top/../../etc/passwd")
    assert await instance.read("../../../../../etc/hostname") == b"sandbox\n"
    for loop in (instance.read("loop"), instance.write("loop", b"")):
        with pytest.raises(OSError, match="Too many levels"):
            await loop


@pytest.mark.promise("instances:files:links")
async def test_links_are_described_and_removed_as_links(instance: Instance) -> None:
    await shell(instance, "mkdir a; touch a/kept; ln -s a link; ln -s nowhere broken")
    info = await instance.stat("link")
    assert (info.kind, info.target) == ("symlink", "a")
    assert (await instance.stat("broken")).target == "nowhere"
    await instance.remove("link", recursive=True)
    assert (await instance.stat("a/kept")).kind == "file"
    await instance.write("broken", b"mended")
    assert await instance.read("nowhere") == b"mended"


@pytest.mark.promise("instances:files:links")
async def test_a_path_that_changes_during_an_operation_never_leads_out(instance: Instance) -> None:
    await instance.write("real/hostname", b"inside\n")
    swap = "ln -s /etc link; while :; do mv -T real aside; mv -T link real; mv -T real link; mv -T aside real; done"
    async with await instance.open_stream(["bash", "-c", f"echo go; {swap}"]) as stream:
        await anext(stream.receive())
        for _ in range(150):
            try:
                assert await instance.read("real/hostname") in (b"inside\n", b"sandbox\n")
            except FileNotFoundError:
                continue


# -- folders --------------------------------------------------------------------------------------------


@pytest.mark.promise("instances:files:folders")
async def test_a_folder_is_listed_in_order_and_recursively_on_request(instance: Instance) -> None:
    await shell(instance, "mkdir -p b/c; echo 12345 > a; touch b/c/d; ln -s a z; chmod 700 b; chmod 640 a")
    assert [info.path for info in await instance.list()] == [f"{HOME}/{name}" for name in "abz"]
    listed = await instance.list(recursive=True)
    assert [info.path for info in listed] == [f"{HOME}/{name}" for name in ("a", "b", "b/c", "b/c/d", "z")]
    file = listed[0]
    assert file == FileInfo(f"{HOME}/a", "file", 6, 0o640, file.modified)
    assert listed[0] == await instance.stat("a")
    assert [info.kind for info in listed] == ["file", "directory", "directory", "file", "symlink"]
    assert [info.path for info in await instance.list("b/c")] == [f"{HOME}/b/c/d"]


@pytest.mark.promise("instances:files:folders")
async def test_a_folder_can_be_created_again_but_not_over_a_file(instance: Instance) -> None:
    for _ in range(2):
        await instance.make_directory("a/b/c")
    await instance.write("file", b"")
    with pytest.raises(NotADirectoryError):
        await instance.make_directory("file")


@pytest.mark.promise("instances:files:folders")
async def test_removing_a_folder_removes_its_content_and_nothing_else(instance: Instance) -> None:
    await shell(instance, "mkdir -p a/b kept; touch a/b/c kept/d; ln -s ../kept a/link")
    await instance.remove("a", recursive=True)
    assert [info.path for info in await instance.list(recursive=True)] == [f"{HOME}/kept", f"{HOME}/kept/d"]
    for whole in ("/", ".", "kept/.."):
        with pytest.raises(OSError, match="must end in a name"):
            await instance.remove(whole, recursive=True)


@pytest.mark.promise("instances:files:deep")
async def test_folders_too_deep_for_a_path_do_no_harm(instance: Instance) -> None:
    deep = "import os\nfor _ in range(3000):\n os.mkdir('d'*50); os.chdir('d'*50)"
    assert (await instance.exec(["python3", "-c", deep])).exit_code == 0
    assert len(await instance.list(recursive=True)) > 50
    try:
        await instance.remove("d" * 50, recursive=True)
    except OSError as error:
        assert error.filename == f"{HOME}/{'d' * 50}"
    with pytest.raises(CannotFork):
        await instance.fork()
    await instance.write("after", b"still here")
    assert await instance.read("after") == b"still here"


@pytest.mark.promise("instances:files:move")
async def test_moving_replaces_only_on_request(instance: Instance) -> None:
    await instance.write("one", b"1")
    await instance.write("two", b"2")
    with pytest.raises(FileExistsError, match="two"):
        await instance.move("one", "two")
    await instance.move("one", "two", replace=True)
    assert await instance.read("two") == b"1"
    await instance.move("two", "new/place/two")
    await instance.move("new", "/tmp/moved")
    assert await instance.read("/tmp/moved/place/two") == b"1"
    with pytest.raises(OSError, match="Invalid argument"):
        await instance.move("/tmp/moved", "/tmp/moved/below")


# -- shared with processes inside -----------------------------------------------------------------------


@pytest.mark.promise("instances:files:shared")
async def test_shell_python_commands_and_server_see_the_same_files(instance: Instance) -> None:
    await instance.write("from-outside", b"1")
    assert (await instance.run("bash", "cat from-outside; echo 2 > from-bash")).stdout == "1"
    assert (
        await instance.run("python", "open('from-python', 'w').write(open('from-bash').read())")
    ).value == "2"
    assert await instance.read("from-python") == b"2\n"


@pytest.mark.promise("instances:files:shared")
async def test_a_file_operation_is_not_a_process_of_the_instance_and_survives_the_end_of_a_run(
    runtime: ProcessRuntime,
) -> None:
    instance = await runtime.start()
    await instance.write("large", bytes(1 << 20))
    ear = Ear(b"on")
    reader, writer = os.pipe()

    async def pack() -> None:
        # Like a snapshot, but into a pipe, where it must wait for a reader.
        try:
            await instance._client.ask("pack", [writer], sandbox=instance.id)  # pyright: ignore[reportPrivateUsage]
        finally:
            os.close(writer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(instance.run, "bash", "echo on; sleep 1000", on_output=ear))
        await ear.heard.wait()
        tasks.start_soon(pack)
        await anyio.wait_readable(reader)
        assert (await instance.usage()).processes == 2
        assert await instance.interrupt("bash")
        await instance.run("bash", "true")
        with os.fdopen(reader, "rb") as archive:
            assert b"large" in await anyio.to_thread.run_sync(archive.read)
    await instance.stop()


@pytest.mark.promise("instances:files:shared")
async def test_instances_share_no_files(runtime: ProcessRuntime, instance: Instance) -> None:
    other = await runtime.start()
    for path in ("mine", "/tmp/mine", "/dev/shm/mine", "/var/tmp/mine"):
        await instance.write(path, b"secret")
        with pytest.raises(FileNotFoundError):
            await other.read(path)
    await other.stop()


@pytest.mark.promise("instances:files:shared")
async def test_no_descriptor_stays_open(instance: Instance) -> None:
    await instance.write("file", b"x")
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        await instance.write("file", b"y")
        await instance.read("file")
        await instance.list(recursive=True)
        with pytest.raises(FileNotFoundError):
            await instance.read("missing")
        with pytest.raises(IsADirectoryError):
            await instance.read(".")
    assert len(os.listdir("/proc/self/fd")) == len(before)


# -- for an ordinary user ---------------------------------------------------------------------------------

AS_A_USER = """
import anyio
from runtimes.process import ProcessRuntime

async def main():
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        instance = await runtime.start()
        await instance.exec(["sh", "-c", "umask 077; mkdir private; echo x > private/file; ln -s file private/link"])
        print([info.path for info in await instance.list(recursive=True)])
        await instance.exec(["chmod", "-R", "a-rwx", "private"])
        for ask in (instance.list("private"), instance.read("private/file"), instance.remove("private", recursive=True)):
            try:
                await ask
            except PermissionError as error:
                print(error.strerror)
        await instance.exec(["chmod", "-R", "u+rwx", "private"])
        await instance.remove("private", recursive=True)
        print(await instance.list())

anyio.run(main)
"""


@pytest.mark.promise("instances:files:user")
@pytest.mark.parametrize("env", [{}, {"PATH": "/nowhere"}], ids=["with a range of ids", "with one id"])
def test_an_ordinary_user_serves_private_files_with_the_rights_of_the_sandbox_user(
    plain_user: PlainUser, env: dict[str, str]
) -> None:
    run = plain_user.run_python(AS_A_USER, env=env)
    assert run.returncode == 0, run.stderr
    listed = [f"{HOME}/{name}" for name in ("private", "private/file", "private/link")]
    assert run.stdout.splitlines() == [str(listed), *["Permission denied"] * 3, "[]"]
