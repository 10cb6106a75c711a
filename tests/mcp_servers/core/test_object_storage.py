"""Files of ended sessions in a bucket."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import anyio
import anyio.lowlevel
import httpx2
import pytest

from agentflow.errors import ToolFailure
from mcp_servers.core._archive import Archive
from mcp_servers.core._object_storage import BucketStorage
from tests._s3 import BUCKET, CREDENTIALS, interrupting_proxy, s3_server
from tests.mcp_servers._program import program
from tests.mcp_servers._serving import connected
from tests.mcp_servers.core.test_archive import Files, bash, is_kept, start
from tests.mcp_servers.serving.test_command import address

pytestmark = pytest.mark.promise("mcp:sessions:bucket")

MIB = 1 << 20
SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A server with an empty bucket."""
    with s3_server() as url:
        yield url


@pytest.fixture
def keys(s3: str, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials and endpoint in the environment of this process."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def serving(s3: str, url: str = f"s3://{BUCKET}/server") -> tuple[tuple[str, ...], dict[str, str]]:
    """Return arguments and environment of a server with a bucket."""
    words = ("bash", "--http", "127.0.0.1:0", f"sessions.archive.url={url}", "tokens={ann: one, ben: two}")
    return words, {**CREDENTIALS, "AWS_ENDPOINT_URL": s3}


async def refusal(s3: str, url: str = f"s3://{BUCKET}/server", **environment: str) -> str:
    """Return the one line with which a server refuses to start."""
    words, credentials = serving(s3, url)
    with anyio.fail_after(100):
        async with program(*words, environment={**credentials, **environment}) as running:
            line = await running.rest()
            assert await running.process.wait() == 2
    assert line.count("\n") == 1
    assert SECRET not in line
    return line


async def fill(archive: Archive, handles: list[str], s3: str) -> None:
    """Keep ten bytes each, at times that the bucket's clock tells apart."""
    async with httpx2.AsyncClient() as http:

        async def now() -> str:
            return (await http.head(f"{s3}/{BUCKET}")).headers["date"]

        for handle in handles:
            await archive.keep(handle, "ann", Files(10))
            began = await now()
            while await now() == began:
                await anyio.lowlevel.checkpoint()


async def test_the_files_of_a_session_are_reused_on_another_server_with_the_same_bucket(s3: str) -> None:
    words, environment = serving(s3)
    with anyio.fail_after(100):
        async with (
            program(*words, environment=environment) as first,
            program(*words, environment=environment) as second,
            connected(await address(first), "one") as ann,
        ):
            url = await address(second)
            async with connected(url, "one") as ann_there, connected(url, "two") as ben_there:
                ended = await start(ann)
                await bash(ann, ended, "mkdir -p notes && echo kept > notes/a && chmod 700 notes/a")
                await ann.call_tool("session_end", {"session": ended})
                again = await start(ann_there, files_of=ended)
                assert await bash(ann_there, again, "stat -c %a notes/a; cat notes/a") == "700\nkept\n"
                for client, handle in ((ann_there, "../" + ended), (ben_there, ended)):
                    refused = await client.call_tool("session_start", {"files_of": handle})
                    assert refused.is_error
                    assert "are kept" in str(refused.content)


async def test_what_a_bucket_lacks_is_one_line_at_the_start_of_the_server(s3: str) -> None:
    assert "write s3://BUCKET/PREFIX" in await refusal(s3, "https://somewhere/else")
    hidden = await refusal(s3, "s3://key:hidden@kept-files")
    assert "write s3://BUCKET/PREFIX" in hidden
    assert "'B' can't be the name of a bucket" in await refusal(s3, "s3://B")
    assert "s3://missing: the bucket does not exist" in await refusal(s3, "s3://missing")
    assert "AWS_ENDPOINT_URL is no URL" in await refusal(s3, AWS_ENDPOINT_URL="no url")
    with s3_server(checks_keys=True) as strict:
        assert "credentials are refused (InvalidAccessKeyId)" in await refusal(strict)


async def test_folder_and_url_exclude_each_other(s3: str) -> None:
    words, environment = serving(s3)
    with anyio.fail_after(60):
        async with program(*words, "sessions.archive.folder=x", environment=environment) as running:
            assert "sessions.archive: set one of folder and url" in await running.rest()


async def test_a_missing_extra_is_one_line_with_the_command_that_adds_it(s3: str, tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError\n", encoding="utf-8")
    assert "needs the extra s3: " in await refusal(s3, PYTHONPATH=str(tmp_path))


async def test_the_oldest_archives_of_several_servers_are_deleted_first(
    s3: str, keys: pytest.MonkeyPatch
) -> None:
    first, second = (Archive(BucketStorage(BUCKET, "oldest"), 25) for _ in range(2))
    await fill(first, ["s0"], s3)
    await fill(second, ["s1"], s3)
    await first.keep("s2", "ann", Files(10))
    assert [await is_kept(second, f"s{number}") for number in range(3)] == [False, True, True]
    assert not await is_kept(Archive(BucketStorage(BUCKET, "elsewhere"), 25), "s1")


async def test_servers_that_keep_files_at_once_neither_exceed_the_limit_nor_delete_more(
    keys: pytest.MonkeyPatch,
) -> None:
    storages = [BucketStorage(BUCKET, "crowd") for _ in range(8)]
    async with anyio.create_task_group() as group:
        for server, storage in enumerate(storages):
            for number in range(4):
                group.start_soon(Archive(storage, 45).keep, f"s{server}-{number}", "ann", Files(10))
    assert len(await storages[0].list()) == 4


async def test_objects_of_others_below_the_prefix_are_neither_counted_nor_deleted(
    keys: pytest.MonkeyPatch,
) -> None:
    storage = BucketStorage(BUCKET, "mixed")
    with TemporaryFile() as file:
        file.write(b"x" * 100)
        for name in ("note", "deeper/x.files"):
            await storage.publish(file, name)
    await Archive(storage, 25).keep("s", "ann", Files(10))
    assert len(await storage.list()) == 1
    for name in ("note", "deeper/x.files"):
        archive = await storage.open(name)
        assert archive is not None
        archive.close()


async def test_an_oversized_workspace_is_not_uploaded(keys: pytest.MonkeyPatch) -> None:
    storage = BucketStorage(BUCKET, "oversized")
    await Archive(storage, 25).keep("large", "ann", Files(26))
    assert await storage.list() == []


async def test_an_outage_in_the_middle_of_an_upload_and_of_a_download_is_retried(
    s3: str, keys: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * (20 * MIB // 256)
    with anyio.fail_after(100), TemporaryFile() as file:
        file.write(content)
        async with interrupting_proxy(s3) as proxy:
            keys.setenv("AWS_ENDPOINT_URL", proxy.url)
            storage = BucketStorage(BUCKET, "outage")
            proxy.cut_upload_after = 3 * MIB
            await storage.publish(file, "a.files")
            assert proxy.cut_upload_after is None
            proxy.cut_download_after = 9 * MIB
            archive = await storage.open("a.files")
            assert proxy.cut_download_after is None
            assert archive is not None
            with archive:
                assert archive.read() == content


async def test_nothing_is_visible_of_an_upload_that_was_interrupted(
    s3: str, keys: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(100), TemporaryFile() as file:
        file.write(b"x" * 20 * MIB)
        async with interrupting_proxy(s3) as proxy:
            keys.setenv("AWS_ENDPOINT_URL", proxy.url)
            uploading = BucketStorage(BUCKET, "cut")
            proxy.cut_upload_after = 3 * MIB
            async with anyio.create_task_group() as group:
                group.start_soon(uploading.publish, file, "a.files")
                await proxy.was_cut.wait()
                group.cancel_scope.cancel()
        keys.setenv("AWS_ENDPOINT_URL", s3)
        storage = BucketStorage(BUCKET, "cut")
        assert await storage.list() == []
        assert await storage.open("a.files") is None


async def test_a_server_whose_bucket_is_gone_serves_on_and_says_so(s3: str) -> None:
    words, environment = serving(s3, "s3://short-lived")
    httpx2.put(f"{s3}/short-lived").raise_for_status()
    with anyio.fail_after(100):
        async with program(*words, environment=environment) as running:
            async with connected(await address(running), "one") as ann:
                httpx2.delete(f"{s3}/short-lived").raise_for_status()
                ended = await start(ann)
                await bash(ann, ended, "echo lost > a")
                await ann.call_tool("session_end", {"session": ended})
                refused = await ann.call_tool("session_start", {"files_of": ended})
                assert "s3://short-lived: the bucket does not exist" in str(refused.content)
                httpx2.put(f"{s3}/short-lived").raise_for_status()
                ended = await start(ann)
                await bash(ann, ended, "echo kept > a")
                await ann.call_tool("session_end", {"session": ended})
                assert await bash(ann, await start(ann, files_of=ended), "cat a") == "kept\n"
            running.process.terminate()
            log = await running.rest()
    assert log.count("cannot keep the files of a session of ann: s3://short-lived: the bucket does not") == 1
    assert SECRET not in log


async def test_keys_are_in_no_error(keys: pytest.MonkeyPatch) -> None:
    with s3_server(checks_keys=True) as strict:
        keys.setenv("AWS_ENDPOINT_URL", strict)
        storage = BucketStorage(BUCKET, "")
        with pytest.raises(ToolFailure, match="credentials are refused") as refused:
            await storage.open("a.files")
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(refused.value.__context__)


MEASURE = """
import resource, sys
from tempfile import TemporaryFile
import anyio, obstore
from mcp_servers.core._object_storage import BucketStorage

async def main():
    storage = BucketStorage(sys.argv[1], "memory")
    with TemporaryFile() as file:
        for _ in range(128):
            file.write(bytes(1 << 20))
        begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await storage.publish(file, "a.files")
        (await storage.open("a.files")).close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin)

anyio.run(main)
"""


def test_an_upload_and_a_download_take_bounded_memory(keys: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, BUCKET], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) < 64 * 1024
