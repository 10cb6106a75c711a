"""Manifests of a launch for Kubernetes: a Job of ordinary run processes, and the files that they read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from agentflow.errors import ConfigurationError

_NAME: Final = "agentflow-launch"
_WORK: Final = "/agentflow"
_MAX_BYTES: Final = 900_000
"""Size of all files of a ConfigMap, below the limit of 1 MiB."""
_RESTARTS: Final = 10


def render_job(
    words: Sequence[str], *, workers: int, image: str, secret: str, files: Sequence[str] = ()
) -> str:
    """Return manifests, as YAML, of a Job whose pods share a run.

    Example::

        print(render_job(["synth", "config.yaml"], workers=4, image="registry/agentflow", secret="agentflow"))

    :param words: arguments of `agentflow`.
    :param image: image with AgentFlow and the extra `postgres`.
    :param secret: name of the Secret with `AGENTFLOW_JOURNAL` and the keys of models.
    :param files: files that the run reads, relative to the working directory.
    :raises ConfigurationError: if a file can't be part of a ConfigMap.
    """
    texts = {f"file-{number}": _text(name) for number, name in enumerate(files)}
    if sum(len(text.encode()) for text in texts.values()) > _MAX_BYTES:
        raise ConfigurationError(
            "--on k8s: the files of the run are too large for a ConfigMap; put them into the image"
        )
    mounts = [
        {"name": "files", "mountPath": f"{_WORK}/{name}", "subPath": key, "readOnly": True}
        for key, name in zip(texts, files, strict=True)
    ]
    documents = [_job(words, workers, image, secret, mounts)]
    if texts:
        metadata = {"name": f"{_NAME}-files"}
        documents.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts})
    return yaml.safe_dump_all(documents, sort_keys=False, width=110)


def _text(name: str) -> str:
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ConfigurationError(f"--on k8s: {name} is outside the working directory; use a path below it")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"--on k8s: {name}: can't be read as text: {error}") from None


def _job(
    words: Sequence[str], workers: int, image: str, secret: str, mounts: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """Return the Job. Without `completions`, it is done once a pod has found that nothing is left, and all have ended."""
    container = {
        "name": "worker",
        "image": image,
        "command": ["agentflow", *words, "output_dir=/output/files"],
        "workingDir": _WORK,
        "env": [
            {"name": f"AGENTFLOW_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in _FROM_POD.items()
        ],
        "envFrom": [{"secretRef": {"name": secret}}],
        "securityContext": _SECURITY,
        "volumeMounts": [{"name": "output", "mountPath": "/output"}, *mounts],
    }
    volumes: list[Mapping[str, object]] = [{"name": "output", "emptyDir": {}}]
    if mounts:
        volumes.append({"name": "files", "configMap": {"name": f"{_NAME}-files"}})
    pod = {
        "restartPolicy": "Never",
        # The root of the pod is no root of its machine; sandboxes mount a proc file system of their own.
        "hostUsers": False,
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [_SPREAD],
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _NAME},
        "spec": {
            "parallelism": workers,
            "backoffLimit": _RESTARTS * workers,
            "podFailurePolicy": {"rules": _RULES},
            "template": {"metadata": {"labels": {"app": _NAME}}, "spec": pod},
        },
    }


_FROM_POD: Final[Mapping[str, str]] = {
    "HOST_NAME": "spec.nodeName",
    # The Job's: a pod that replaces another one belongs to the same launch.
    "LAUNCH_ID": "metadata.labels['batch.kubernetes.io/controller-uid']",
}
"""Settings of a worker by the field of its pod."""
_SECURITY: Final[Mapping[str, object]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    # Sandboxes are made of user namespaces and mounts, which the default profiles and a masked /proc refuse.
    "procMount": "Unmasked",
    "seccompProfile": {"type": "Unconfined"},
    "appArmorProfile": {"type": "Unconfined"},
}
_SPREAD: Final[Mapping[str, object]] = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"app": _NAME}},
}
_RULES: Final[Sequence[Mapping[str, object]]] = (
    # A machine that is drained is no failure.
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    # Failed, refused and stopped runs would end in the same way again; a killed one is started again.
    {"action": "FailJob", "onExitCodes": {"containerName": "worker", "operator": "In", "values": [1, 2, 3]}},
)
