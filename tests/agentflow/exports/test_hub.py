"""Uploads to a hub, played by a server of the test."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentflow.cli import main
from tests.agentflow.exports._trees import files_of


class FakeHub(BaseHTTPRequestHandler):
    """Keeps what is uploaded; refuses every token but one."""

    kept: dict[str, bytes]
    created: list[dict[str, Any]]

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        files = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in self.kept]
        self._answer(files if "/tree/" in self.path else {"siblings": [], "sha": "0" * 40, "id": "me/data"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer hub-token":
            self._answer({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            self._answer({"url": f"http://{self.headers['Host']}/datasets/me/data"})
        elif "/preupload/" in self.path:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.kept[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.kept[line["value"]["path"]]
            self._answer(
                {
                    "commitUrl": f"http://{self.headers['Host']}/datasets/me/data/commit/1",
                    "commitOid": "1" * 40,
                }
            )
        else:
            self._answer({"errors": [], "warnings": []})

    def _answer(self, record: object, status: int = 200) -> None:
        body = json.dumps(record).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    class Hub(FakeHub):
        kept = {"old.jsonl": b"of an earlier export"}  # noqa: RUF012
        created: list[dict[str, Any]] = []  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hub-token")
    yield Hub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.promise("exports:hub")
def test_an_export_is_uploaded_as_a_private_data_set(
    rollout: Path, tmp_path: Path, hub: type[FakeHub]
) -> None:
    folder = tmp_path / "data"
    words = ["export", str(rollout), "--format", "openai", "-o", str(folder), "--push-to-hub", "me/data"]
    assert main(words) == 0
    assert hub.kept == dict(files_of(folder))
    assert hub.created[0]["visibility"] == "private"


@pytest.mark.promise("exports:hub")
def test_a_refusal_is_one_line_and_the_files_stay(
    rollout: Path,
    tmp_path: Path,
    hub: type[FakeHub],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "data"
    words = ["export", str(rollout), "--format", "openai", "-o", str(folder), "--push-to-hub"]
    monkeypatch.setenv("HF_TOKEN", "another")
    assert main([*words, "me/data"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "refused me/data" in shown
    assert main([*words, "data"]) == 2
    assert "data is no OWNER/NAME" in capsys.readouterr().err
    assert (folder / "train.jsonl").is_file()
    assert set(hub.kept) == {"old.jsonl"}
