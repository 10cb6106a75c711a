"""Bucket of an S3-compatible service as storage of the files of ended sessions."""

import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.core._archive import SUFFIX, StoredArchive
from runtimes import MIB

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

_SETTING: Final = "sessions.archive.url"
_PART_BYTES: Final = 8 * MIB
"""Size of a part of an upload."""
_PARTS: Final = 2
"""Parts in flight: an upload has at most 24 MiB in memory."""
_RETRIES: Final = 6
_RETRY_SECONDS: Final = 60
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_REFUSED: Final = {
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_METADATA_HOST: Final = "169.254.169.254"
"""Address at which a cloud machine gets credentials; asked if the environment has none."""


def split_bucket_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix of `s3://BUCKET/PREFIX`.

    :raises ValueError: with one line, if it is something else.
    """
    parts = urlsplit(url)
    # The message leaves out the URL: it may contain a key.
    if parts.scheme != "s3" or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("write s3://BUCKET/PREFIX; keys are read from AWS_* variables of the environment")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(f"{parts.netloc!r} can't be the name of a bucket; write s3://BUCKET/PREFIX")
    return parts.netloc, parts.path.strip("/")


class BucketStorage:
    """Objects below a prefix of a bucket. Credentials, region and endpoint are those of the `AWS_*` variables."""

    upload_seconds = 300.0
    """Time beyond that of a local folder to keep the files of a session."""

    def __init__(self, bucket: str, prefix: str) -> None:
        """Use a bucket; nothing is sent yet.

        :raises ConfigurationError: if the extra is missing, or the endpoint of the environment can't be used.
        """
        self._url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._store = _open_store(bucket, prefix)

    async def check(self) -> None:
        """List the archives once."""
        try:
            await self.list()
        except ToolFailure as failure:
            raise ConfigurationError(f"{_SETTING}: {failure.message}") from None

    async def new_file(self) -> IO[bytes]:
        """Create a temporary file without a name, which a crash removes."""
        return await anyio.to_thread.run_sync(TemporaryFile)

    async def publish(self, file: IO[bytes], name: str) -> None:
        """Upload the file in parts; the object appears once all are there."""
        from obstore import put_async

        file.seek(0)
        with self._readable_errors():
            await put_async(self._store, name, file, chunk_size=_PART_BYTES, max_concurrency=_PARTS)

    async def discard(self, file: IO[bytes]) -> None:
        """Close the file."""
        file.close()

    async def open(self, name: str) -> IO[bytes] | None:
        """Download the archive to a temporary file without a name."""
        from obstore import get_async

        file = await self.new_file()
        try:
            with self._readable_errors():
                download = await get_async(self._store, name)
                async for part in download.stream(min_chunk_size=MIB):
                    await anyio.to_thread.run_sync(file.write, part)
            await anyio.to_thread.run_sync(file.flush)
            file.seek(0)
        except FileNotFoundError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        return file

    async def list(self) -> list[StoredArchive]:
        """Return the objects directly below the prefix."""
        with self._readable_errors():
            # In a thread of ours: a server that refuses the bucket ends at once, and threads of the library would abort
            # the process if they reported an answer meanwhile.
            objects = await anyio.to_thread.run_sync(self._objects, abandon_on_cancel=True)
        return [
            StoredArchive(entry["last_modified"].timestamp(), entry["path"], entry["size"])
            for entry in objects
            if entry["path"].endswith(SUFFIX)
        ]

    def _objects(self) -> "Sequence[ObjectMeta]":
        # An overload of it has types of another library.
        from obstore import list_with_delimiter  # pyright: ignore[reportUnknownVariableType]

        return list_with_delimiter(self._store)["objects"]

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; ones that are gone do not matter."""
        from obstore import delete_async

        with self._readable_errors():
            await delete_async(self._store, names)

    @contextmanager
    def _readable_errors(self) -> Generator[None]:
        """Turn an error of the service into one line; a missing object stays a `FileNotFoundError`."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
                raise
            raise ToolFailure(ErrorKind.UNAVAILABLE, f"{self._url}: {_reason(text)}") from None


def _reason(text: str) -> str:
    """Return one line for an error of the service. The library's text has requests, but no keys."""
    code = match[1] if (match := _CODE.search(text)) else ""
    if code == "NoSuchBucket":
        return "the bucket does not exist; create it, or correct its name"
    if code in _REFUSED:
        return f"the credentials are refused ({code}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if _METADATA_HOST in text:
        return "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    line = code or text.splitlines()[0].rpartition(" - ")[2]
    return f"the service can't be used ({line}); check AWS_ENDPOINT_URL and AWS_REGION"


def _open_store(bucket: str, prefix: str) -> "S3Store":
    try:
        from obstore.store import S3Store
    except ImportError:
        raise ConfigurationError(missing_extra(f"{_SETTING}: an archive in a bucket", "s3")) from None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", endpoint, re.ASCII):
        raise ConfigurationError(f"{_SETTING}: AWS_ENDPOINT_URL is no URL; write http(s)://HOST:PORT")
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={
            # An endpoint without TLS is one that the environment names explicitly.
            "allow_http": bool(endpoint and endpoint.startswith("http:")),
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=_RETRY_SECONDS),
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )
