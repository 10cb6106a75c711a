"""Sandboxes in a Kubernetes cluster, made by the controller of agent-sandbox."""

import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from k8s_agent_sandbox.async_sandbox import AsyncSandbox
from k8s_agent_sandbox.async_sandbox_client import AsyncSandboxClient
from k8s_agent_sandbox.constants import CLAIM_API_GROUP, CLAIM_API_VERSION, CLAIM_PLURAL_NAME
from k8s_agent_sandbox.exceptions import SandboxNotFoundError, SandboxRequestError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig, SandboxInClusterConnectionConfig

from agentflow.errors import InstanceGone, IsolationUnavailable, NotOffered, RuntimeFailure
from runtimes._protocol import InstanceSpec
from runtimes.remote._service import (
    REALM_LABEL,
    SERVER_LABEL,
    RemoteOptions,
    RemoteSandbox,
    SandboxService,
    ServiceTraits,
    service_errors,
)

_NOT_FOUND = 404

# It has no types.
_kubernetes: Any = import_module("kubernetes_asyncio.config")


def _is_gone(error: Exception) -> bool:
    if isinstance(error, SandboxRequestError):
        return error.status_code == _NOT_FOUND
    return isinstance(error, SandboxNotFoundError) or getattr(error, "status", None) == _NOT_FOUND


def _errors() -> AbstractAsyncContextManager[None]:
    return service_errors("k8s", "", _is_gone)


class KubernetesSandbox:
    """Sandbox claim and its pod. See `runtimes.remote._service.RemoteSandbox`."""

    def __init__(self, service: "KubernetesService", sandbox: AsyncSandbox) -> None:
        self._service = service
        self._sandbox = sandbox
        self._folder = ""

    @property
    def id(self) -> str:
        """Name of the claim."""
        return str(self._sandbox.claim_name)

    async def command(self, command: str, seconds: float) -> bytes:
        """Run a shell command as the user of the pod."""
        runner = self._sandbox.commands
        if runner is None:
            raise InstanceGone("the sandbox has ended")
        async with _errors():
            # The runtime in the pod starts a program, not a shell.
            done = await runner.run(f"bash -c {shlex.quote(command)}", timeout=int(seconds))
            if done.exit_code:
                raise RuntimeFailure(f"k8s: a command failed: {' '.join(done.stderr.split())[:300]}")
            return done.stdout.encode()
        raise AssertionError("unreachable: the context does not suppress")

    async def upload(self, path: str, data: bytes) -> str:
        """Write a file into the folder of the pod's runtime."""
        files = self._sandbox.files
        if files is None:
            raise InstanceGone("the sandbox has ended")
        name = f"agentflow-{secrets.token_hex(8)}"
        if not self._folder:
            self._folder = (await self.command("pwd", 30.0)).decode("utf-8", "replace").strip()
        async with _errors():
            await files.write(name, data)
        return f"{self._folder}/{name}"

    async def download(self, path: str) -> bytes:
        """Copy a file into the folder of the pod's runtime, and read it."""
        files = self._sandbox.files
        if files is None:
            raise InstanceGone("the sandbox has ended")
        name = f"agentflow-{secrets.token_hex(8)}"
        await self.command(f"(umask 077; cp {shlex.quote(path)} {name})", 60.0)
        async with _errors():
            data = await files.read(name)
        await self.command(f"rm -f {name}", 30.0)
        return data

    async def renew(self, seconds: int) -> None:
        """Set the time at which the controller deletes it."""
        await self._service.set_end(self.id, seconds)

    async def fork(self, labels: Mapping[str, str], seconds: int) -> RemoteSandbox:
        """Refuse: pods are not copied with their memory."""
        raise NotOffered("k8s: a sandbox is not copied with its memory")

    async def end(self) -> None:
        """Delete it."""
        await self._service.end(self.id)


class KubernetesService(SandboxService):
    """Client of a cluster. See `runtimes.remote._service.SandboxService`."""

    traits = ServiceTraits(
        renew=True,
        notes=(
            "the sandbox template of the cluster decides about isolation, network and resources",
            "programs inside run as root only if the template's user is root",
        ),
    )

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._client: AsyncSandboxClient[Any] | None = None
        self._cluster: Any = None

    @property
    def _open_client(self) -> "AsyncSandboxClient[Any]":
        if self._client is None:
            raise RuntimeFailure("k8s: not connected")
        return self._client

    async def open(self) -> None:
        """Connect with the configuration of the pod, or the one that `kubectl` uses."""
        if self._options.template is None:
            raise IsolationUnavailable(
                "runtime k8s needs a warm pool: set runtime: {name: k8s, template: POOL}"
            )
        url = self._options.url
        config = (
            SandboxInClusterConnectionConfig() if url is None else SandboxDirectConnectionConfig(api_url=url)
        )
        try:
            async with _errors():
                # The library reads the variable when it is imported, and not again.
                path = os.environ.get("KUBECONFIG")
                self._cluster = await _kubernetes.new_client_from_config(config_file=path) if path else None
                self._client = AsyncSandboxClient(config, cleanup=False, api_client=self._cluster)
                await self._client.list_all_sandboxes(self._options.namespace, f"{REALM_LABEL}=none")
        except RuntimeFailure as error:
            raise IsolationUnavailable(f"{error}: check the cluster's configuration (KUBECONFIG)") from None

    async def create(self, spec: InstanceSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        """Claim a sandbox that the controller deletes at the end of its lifetime."""
        try:
            async with _errors():
                sandbox = await self._open_client.create_sandbox(
                    self._options.template or "",
                    self._options.namespace,
                    int(self._options.start_seconds),
                    dict(labels),
                    shutdown_after_seconds=self._options.lifetime,
                )
                return KubernetesSandbox(self, sandbox)
        except RuntimeFailure as error:
            raise IsolationUnavailable(str(error)) from None
        raise AssertionError("unreachable: the context does not suppress")

    async def servers(self, realm: str) -> dict[str, str]:
        """Return the claims of a realm."""
        server_of_claim: dict[str, str] = {}
        space = self._options.namespace
        async with _errors():
            for name in await self._open_client.list_all_sandboxes(space, f"{REALM_LABEL}={realm}"):
                claim = await self._open_client.k8s_helper.get_sandbox_claim(name, space)
                if claim is not None:
                    server_of_claim[name] = str(claim["metadata"].get("labels", {}).get(SERVER_LABEL, ""))
        return server_of_claim

    async def set_end(self, claim: str, seconds: int) -> None:
        """Set the time at which the controller deletes a claim."""
        moment = datetime.now(UTC) + timedelta(seconds=seconds)
        objects: Any = self._open_client.k8s_helper.custom_objects_api
        async with _errors():
            await objects.patch_namespaced_custom_object(
                CLAIM_API_GROUP,
                CLAIM_API_VERSION,
                self._options.namespace,
                CLAIM_PLURAL_NAME,
                claim,
                {"spec": {"lifecycle": {"shutdownTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}}},
                _content_type="application/merge-patch+json",
            )

    async def end(self, sandbox_id: str) -> None:
        """Delete a claim."""
        async with _errors():
            await self._open_client.delete_sandbox(sandbox_id, self._options.namespace)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            client, self._client = self._client, None
            async with _errors():
                await client.close()
                if self._cluster is not None:
                    await self._cluster.close()
