# pyright: basic, reportMissingImports=false
"""`python _play.py`, in the environment of verifiers: list the tasks of an environment, or play an episode of one.

A request is a line of JSON on standard input, and the answer the last line of standard output. Nothing of AgentFlow is imported.
"""

import asyncio
import contextlib
import json
import os
import sys
from itertools import islice
from typing import Any

import verifiers.v1 as vf

KEY = "AGENTFLOW_POLICY_KEY"
"""Environment variable with the key of the episode."""


def listed(request: dict[str, Any]) -> dict[str, Any]:
    """Return the tasks of an environment, each with its number, identity and prompt."""
    taskset = vf.load_environment(vf.resolve_env_config(request["env"])).taskset
    tasks = islice(iter(taskset), request["start"], request["start"] + request["size"])
    return {
        "tasks": [
            {
                "idx": task.data.idx,
                "id": task.data.id or task.data.name or task.key,
                "question": task.data.prompt_text if task.data.prompt is not None else "",
            }
            for task in tasks
        ]
    }


async def played(request: dict[str, Any]) -> dict[str, Any]:
    """Play an episode with the model at an address, and return its reward."""
    env = vf.load_environment(vf.resolve_env_config(request["env"]))
    wanted = request["idx"]
    task = next(iter(env.taskset.skip(wanted).take(1)), None)
    if task is None:
        raise ValueError(f"there is no task {wanted}")
    # An episode of the gateway has its own key; it stays out of arguments and records.
    client = vf.EvalClientConfig(base_url=request["base_url"], api_key_var=KEY)
    context = vf.ModelContext(client=client, model=request["model"], sampling=vf.SamplingConfig())
    async with env.serving():
        episode = await env.run_episode(task, context)
    errors = [error.message for error in episode.errors]
    errors += [error.message for trace in episode.traces for error in trace.errors]
    last = episode.traces[-1] if episode.traces else None
    metrics: dict[str, float] = {}
    for trace in episode.traces:
        metrics |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
    return {
        "ok": episode.ok,
        "reward": sum(trace.reward for trace in episode.traces),
        "answer": last.last_reply if last is not None else "",
        "turns": episode.num_turns,
        "metrics": metrics,
        "errors": errors,
    }


def main() -> int:
    """Answer one request."""
    request = json.loads(sys.stdin.readline())
    os.environ[KEY] = request.pop("api_key", "")
    # What libraries print is no answer.
    with contextlib.redirect_stdout(sys.stderr):
        answer = listed(request) if request["do"] == "list" else asyncio.run(played(request))
    print(json.dumps(answer))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
