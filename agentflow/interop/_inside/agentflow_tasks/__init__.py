# pyright: basic, reportMissingImports=false
"""AgentFlow's tasks, with their tools and sandboxes, as a verifiers environment; it talks to `agentflow serve-env`.

`load_environment(url="http://127.0.0.1:8000")`, or `--env.taskset.id agentflow-tasks --env.taskset.url …`. The model and its
tokens stay with verifiers: tools are called, and answers verified, in AgentFlow's sandboxes. It needs verifiers alone.
"""

import os
from collections.abc import Iterator
from typing import Any, cast

import httpx
import verifiers.v1 as vf
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent, Tool
from pydantic import Field
from verifiers.v1.mcp import SharedToolsetConfig, Toolset

__all__ = ["AgentFlowTaskset", "load_environment"]

TOKEN = "AGENTFLOW_ENV_TOKEN"
"""Default of the environment variable with the server's token."""
SECONDS = 600.0
"""Time limit of a call and of a verification."""


class AgentFlowState(vf.State):
    """Session of a rollout, shared by its task and the server of its tools."""

    url: str = ""
    token_env: str = TOKEN
    session: str = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask AgentFlow's server.

        :raises RuntimeError: one line, if it refuses.
        """
        async with httpx.AsyncClient(headers=headers(self.token_env), timeout=SECONDS) as client:
            return answered(await client.post(self.url + path, json=body))


def headers(token_env: str) -> dict[str, str]:
    """Return the headers of a request."""
    token = os.environ.get(token_env, "")
    return {"Authorization": f"Bearer {token}"} if token else {}


def answered(response: httpx.Response) -> dict[str, Any]:
    """Return the body of a response.

    :raises RuntimeError: one line, if it is a refusal.
    """
    if response.is_success:
        return response.json()
    try:
        reason = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        reason = f"status {response.status_code}"
    raise RuntimeError(f"AgentFlow's server: {reason}")


class AgentFlowTools(Toolset[SharedToolsetConfig, AgentFlowState]):
    """The tools of a session, under their own names."""

    TOOL_PREFIX = None

    def register(self, mcp: MCPServer) -> None:
        """Serve the tools of each rollout's own session."""
        server = cast("Any", mcp)
        server.list_tools = self._with_state(self.list_tools)
        server.call_tool = self._with_state(self.call_tool)

    async def list_tools(self) -> list[Tool]:
        """List the tools of the session."""
        specs = [tool["function"] for tool in self.state.tools]
        return [
            Tool(name=spec["name"], description=spec["description"], input_schema=spec["parameters"])
            for spec in specs
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context | None = None
    ) -> CallToolResult:
        """Call a tool in the sandbox of the session."""
        outcome = await self.state.post(
            f"/sessions/{self.state.session}/call", {"tool": name, "arguments": arguments}
        )
        images = [
            ImageContent(type="image", mime_type=image["mime"], data=image["data"])
            for image in outcome["images"]
        ]
        return CallToolResult(
            content=[TextContent(type="text", text=outcome["text"]), *images], is_error=outcome["failed"]
        )


class AgentFlowTaskConfig(vf.TaskConfig):
    """Address of the server."""

    url: str = "http://127.0.0.1:8000"
    """URL that `agentflow serve-env` printed."""
    token_env: str = TOKEN
    """Environment variable with the server's token."""


class AgentFlowTasksetConfig(vf.TasksetConfig):
    """The tasks of a server."""

    tools: SharedToolsetConfig = SharedToolsetConfig()
    """Server of the tools."""
    task: AgentFlowTaskConfig = AgentFlowTaskConfig()
    """Address of the server."""


class AgentFlowTask(vf.Task[vf.TaskData, AgentFlowState, AgentFlowTaskConfig]):
    """A task with a session of its own."""

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Open the session: a sandbox in the initial state of the task."""
        state = cast("AgentFlowState", trace.state)
        state.url, state.token_env = self.config.url.rstrip("/"), self.config.token_env
        session = await state.post("/sessions", {"task": self.data.id})
        state.session, state.tools = session["session"], session["tools"]

    @vf.reward(weight=1.0)
    async def agentflow(self, trace: vf.Trace) -> float:
        """Return the verdict of the task's own verifier, or the score of its answer.

        :raises RuntimeError: if it could not be verified: that is no reward of 0.
        """
        state = cast("AgentFlowState", trace.state)
        score = await state.post(f"/sessions/{state.session}/submit", {"answer": trace.last_reply})
        trace.info["agentflow"] = {"task": self.data.id, "reasons": score["reasons"]}
        if score["reward"] is None:
            raise RuntimeError(f"AgentFlow's server: {score['failure']}")
        return float(score["reward"])


class AgentFlowTaskset(vf.Taskset[AgentFlowTask, AgentFlowTasksetConfig]):
    """The tasks that a server lists."""

    @classmethod
    def toolsets(cls, config: AgentFlowTasksetConfig) -> list[Toolset]:
        """Return the server of the tools, shared by all rollouts."""
        return [AgentFlowTools(config.tools)]

    def load(self) -> Iterator[AgentFlowTask]:
        """Ask the server for its tasks."""
        config = self.config.task
        with httpx.Client(headers=headers(config.token_env), timeout=SECONDS) as client:
            answer = answered(client.post(f"{config.url.rstrip('/')}/agentflow/tasks", json={}))
        for task in answer["tasks"]:
            yield AgentFlowTask(vf.TaskData(id=task["id"], name=task["id"], prompt=task["question"]), config)


def load_environment(
    url: str = "http://127.0.0.1:8000",
    token_env: str = TOKEN,
    **settings: Any,  # noqa: ANN401
) -> vf.Env:
    """Return the environment of a server's tasks.

    :param settings: further settings of the environment, such as `agent`.
    """
    taskset = {"id": "agentflow-tasks", "task": {"url": url, "token_env": token_env}}
    config = vf.resolve_env_config({"taskset": taskset, **settings})
    return vf.load_environment(config)
