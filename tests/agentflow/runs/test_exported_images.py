"""Images beside the files that refer to them."""

import resource
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import RunStopped
from agentflow.runs import AtomicFiles, image_file, image_record
from agentflow.trace import Blob, MemoryBlobStore

PNG = b"\x89PNG\r\n\x1a\n" + bytes(5000)
GIF = b"GIF89a" + bytes(100)


class Store(MemoryBlobStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    async def read(self, hash: str) -> bytes:
        """Return the bytes."""
        self.reads.append(hash)
        return await super().read(hash)


async def write(folder: Path, store: Store, *records: object) -> None:
    async with AtomicFiles.replace(folder, ["a.jsonl"], store.read) as files:
        await files.write({"a.jsonl": [msgspec.json.encode(record) for record in records]})


def images(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "images").iterdir()}


@pytest.mark.promise("synthesis:images")
async def test_each_image_is_written_once_under_its_hash_and_again_only_if_it_is_gone(tmp_path: Path) -> None:
    store = Store()
    png, gif = await store.put(PNG, "image/png"), await store.put(GIF, "image/gif")
    await store.put(b"never mentioned", "image/png")
    records = [
        {"images": [image_record(png)]},
        {"path": image_file(png)},
        {"deep": [{"file": image_file(gif)}]},
    ]
    await write(tmp_path, store, *records)
    assert images(tmp_path) == {f"{png.hash}.png": PNG, f"{gif.hash}.gif": GIF}
    assert {sha256(data).hexdigest() for data in images(tmp_path).values()} == {png.hash, gif.hash}
    assert store.reads == [png.hash, gif.hash]
    await write(tmp_path, store, *records)
    assert store.reads == [png.hash, gif.hash]
    (tmp_path / image_file(gif)).unlink()
    await write(tmp_path, store, *records)
    assert store.reads == [png.hash, gif.hash, gif.hash]
    assert (tmp_path / image_file(gif)).read_bytes() == GIF
    assert (tmp_path / image_file(png)).stat().st_mode & 0o077 == 0


@pytest.mark.promise("synthesis:images")
async def test_texts_that_look_like_references_write_nothing(tmp_path: Path) -> None:
    store, unknown = Store(), "0" * 64
    png = await store.put(PNG, "image/png")
    await write(
        tmp_path, store, f"images/{unknown}.png", f"../images/{png.hash}.png", f"see images/{png.hash}.png",
        {"file": f"images/{png.hash}.exe"}, {"file": f"images/{png.hash}/../../x.png"}, "images/",
    )  # fmt: skip
    assert not (tmp_path / "images").exists()
    assert store.reads == [unknown]


@pytest.mark.promise("synthesis:images")
async def test_an_image_that_can_not_be_written_stops_the_run_and_leaves_no_half_of_it(
    tmp_path: Path,
) -> None:
    store = Store()
    png = await store.put(PNG, "image/png")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RunStopped, match="can't be written"):
            await write(tmp_path, store, image_record(png))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert images(tmp_path) == {}
    assert not (tmp_path / "a.jsonl").exists()


def test_an_image_of_an_unknown_type_has_a_name_too() -> None:
    assert image_file(Blob("c4a7", "image/x-odd")) == "images/c4a7.bin"
