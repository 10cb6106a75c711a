"""Manifests of launches for Kubernetes."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs] - it is typed, and does not say so
import pytest
import yaml

from agentflow.launch import render_job
from tests.agentflow.cli._programs import run_here
from tests.behaviour._tree import ROOT

VERSIONS = ("1.33", kubernetes_validate.latest_version())
"""The first version that the Job can be used with, and the newest one that is known."""


@cache
def launched_manifests() -> str:
    """Return the manifests of a launch with a file."""
    return render_job(
        ["synth", "README.md"], workers=3, image="agentflow", secret="keys", files=["README.md"]
    )


def manifests() -> Iterator[dict[str, Any]]:
    """Yield the manifests of a launch, and those among the configurations."""
    texts = [
        launched_manifests(),
        *(path.read_text(encoding="utf-8") for path in ROOT.glob("configs/**/*.y*ml")),
    ]
    for text in texts:
        for document in yaml.safe_load_all(text):
            if isinstance(document, dict) and {"apiVersion", "kind"} <= document.keys():
                yield document


@pytest.mark.promise("launch:kubernetes:schema")
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas_of_kubernetes(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = list(manifests())
    assert {"ConfigMap", "Job"} <= {document["kind"] for document in found}
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.promise("launch:kubernetes:schema")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("parallelism:", "paralelism:"),
        ("procMount:", "procMounts:"),
        ("hostUsers: false", "hostUsers: never"),
    ],
)
def test_a_mistake_in_a_manifest_is_found(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = launched_manifests()
    assert right in text
    *_, job = yaml.safe_load_all(text.replace(right, wrong))
    with pytest.raises(jsonschema.ValidationError, match=wrong.rpartition(" ")[2].rstrip(":")):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


@pytest.mark.promise("launch:kubernetes")
def test_a_job_has_the_command_its_files_its_secret_and_what_sandboxes_need(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{seeds_file: seeds.jsonl}", encoding="utf-8")
    (tmp_path / "seeds.jsonl").write_text('{"content": "Explore the harbour"}', encoding="utf-8")
    given = ["--on", "k8s", "--workers", "3", "--image", "hub/agentflow:1", "--secret", "keys"]
    done = run_here(
        "launch", *given, "synth", "config.yaml", "max_depth=2", "journal=postgresql://a:b@c/d", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    files, job = yaml.safe_load_all(done.stdout)
    assert list(files["data"].values()) == [
        "{seeds_file: seeds.jsonl}",
        '{"content": "Explore the harbour"}',
    ]
    spec: dict[str, Any] = job["spec"]
    assert (job["kind"], spec["parallelism"], "completions" in spec) == ("Job", 3, False)
    pod = spec["template"]["spec"]
    (worker,) = pod["containers"]
    assert worker["command"] == [
        *("agentflow", "synth", "config.yaml", "max_depth=2", "control=false", "output_dir=/output/files"),
    ]
    assert (worker["image"], worker["envFrom"]) == ("hub/agentflow:1", [{"secretRef": {"name": "keys"}}])
    assert {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in worker["env"]} == {
        "AGENTFLOW_HOST_NAME": "spec.nodeName",
        "AGENTFLOW_LAUNCH_ID": "metadata.labels['batch.kubernetes.io/controller-uid']",
    }
    paths = {mount["mountPath"]: mount.get("subPath") for mount in worker["volumeMounts"]}
    assert paths == {"/output": None, "/agentflow/config.yaml": "file-0", "/agentflow/seeds.jsonl": "file-1"}
    assert pod["hostUsers"] is False
    assert worker["securityContext"]["procMount"] == "Unmasked"


@pytest.mark.promise("launch:kubernetes")
def test_a_file_outside_the_working_directory_is_refused(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text("", encoding="utf-8")
    done = run_here("launch", "--on", "k8s", "synth", f"seeds_file={seeds}", cwd=tmp_path)
    line = f"agentflow: --on k8s: {seeds} is outside the working directory; use a path below it\n"
    assert (done.returncode, done.stderr) == (2, line)
