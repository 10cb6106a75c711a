"""Manifests of launches for Kubernetes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agentflow.cli._programs import run_here


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
    assert worker["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
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
