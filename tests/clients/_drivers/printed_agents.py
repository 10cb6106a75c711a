"""Agents printed in a page, with real endpoints: reads their source, a question and the endpoint of each; prints their answers."""

import asyncio
import inspect
import json
import sys
import traceback

from agentflow.trace import Task
from agentflow.tuner import PolicyEndpoint


async def main():
    given = json.load(sys.stdin)
    names = {}
    exec(given["source"], names)
    task = Task(index=0, id="1", question=given["question"])
    answers = {}
    for name, endpoint in given["endpoints"].items():
        try:
            answer = await asyncio.to_thread(names[name], task, PolicyEndpoint(**endpoint))
            answers[name] = await answer if inspect.isawaitable(answer) else answer
        except Exception:
            answers[name] = traceback.format_exc()
    json.dump(answers, sys.stdout)


asyncio.run(main())
