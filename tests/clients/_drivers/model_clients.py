"""Agents with unchanged client libraries: `python model_clients.py NAME`; the address, the key and the model are variables.

Each asks for the weather in two cities, calls the tool that the model asks for, and prints the final answer.
"""

import asyncio
import json
import os
import subprocess
import sys

BASE, KEY, MODEL = (os.environ[name] for name in ("BASE_URL", "API_KEY", "MODEL"))
TASK = os.environ["TASK"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Return the weather of a city.", "parameters": SCHEMA}
CLAUDE_TOOL = {"name": "weather", "description": FUNCTION["description"], "input_schema": SCHEMA}
REPORTS = {"Rome": "sunny, 21 degrees", "Oslo": "snow, -5 degrees"}


def weather(city: str) -> str:
    """Return the weather of a city."""
    return REPORTS.get(city, "fog")


def results_of(calls):
    for call in calls:
        arguments = json.loads(call.function.arguments)
        yield {"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)}


def openai_sync():
    from openai import OpenAI

    with OpenAI(base_url=BASE, api_key=KEY) as client:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TASK}]
        tools = [{"type": "function", "function": FUNCTION}]
        while True:
            said = (
                client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
            )
            if not said.tool_calls:
                return said.content
            messages += [said, *results_of(said.tool_calls)]


async def openai_async():
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=BASE, api_key=KEY) as client:
        tools = [{"type": "function", **FUNCTION}]
        given, before = [{"role": "user", "content": TASK}], None
        while True:
            said = await client.responses.create(
                model=MODEL, instructions="Be brief.", input=given, tools=tools, previous_response_id=before
            )
            calls = [item for item in said.output if item.type == "function_call"]
            if not calls:
                return said.output_text
            before = said.id
            given = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": weather(**json.loads(call.arguments)),
                }
                for call in calls
            ]


async def openai_stream():
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=BASE, api_key=KEY) as client:
        messages = [{"role": "user", "content": TASK}]
        tools = [{"type": "function", "function": FUNCTION}]
        while True:
            stream = client.chat.completions.stream(model=MODEL, messages=messages, tools=tools)
            async with stream as events:
                async for _ in events:
                    pass
                said = (await events.get_final_completion()).choices[0].message
            if not said.tool_calls:
                return said.content
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in said.tool_calls
            ]
            messages += [
                {"role": "assistant", "content": said.content, "tool_calls": calls},
                *results_of(said.tool_calls),
            ]


async def agents(api):
    from agents import (
        Agent,
        Runner,
        function_tool,
        set_default_openai_api,
        set_default_openai_client,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    set_default_openai_api(api)
    async with AsyncOpenAI(base_url=BASE, api_key=KEY) as client:
        set_default_openai_client(client)
        agent = Agent(
            name="forecaster", instructions="Be brief.", model=MODEL, tools=[function_tool(weather)]
        )
        return (await Runner.run(agent, TASK)).final_output


async def agents_stream():
    from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=BASE, api_key=KEY) as client:
        set_default_openai_client(client)
        agent = Agent(
            name="forecaster", instructions="Be brief.", model=MODEL, tools=[function_tool(weather)]
        )
        running = Runner.run_streamed(agent, TASK)
        async for _ in running.stream_events():
            pass
        return running.final_output


async def langgraph(**options):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model = ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, **options)
    graph = create_react_agent(model, [tool(weather)], prompt="Be brief.")
    state = await graph.ainvoke({"messages": [("user", TASK)]})
    return state["messages"][-1].text


async def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))
    agent = Agent(model, instructions="Be brief.", tools=[weather])
    return (await agent.run(TASK)).output


async def agentscope():
    from agentscope.agent import Agent
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit

    model = OpenAIChatModel(OpenAICredential(api_key=KEY, base_url=BASE), MODEL)
    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")
    toolkit = Toolkit(tools=[FunctionTool(weather, permission=allowed)])
    agent = Agent(name="forecaster", system_prompt="Be brief.", model=model, toolkit=toolkit)
    return (await agent.reply(UserMsg(name="user", content=TASK))).get_text_content()


async def anthropic(stream):
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(base_url=BASE.removesuffix("/v1"), api_key=KEY) as client:
        messages = [{"role": "user", "content": TASK}]
        options = {"model": MODEL, "max_tokens": 200, "system": "Be brief.", "tools": [CLAUDE_TOOL]}
        while True:
            if stream:
                async with client.messages.stream(messages=messages, **options) as events:
                    async for _ in events:
                        pass
                    said = await events.get_final_message()
            else:
                said = await client.messages.create(messages=messages, **options)
            calls = [block for block in said.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in said.content if block.type == "text")
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
                for call in calls
            ]
            messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results}]


def curl():
    messages = [{"role": "user", "content": TASK}]
    headers = ["-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json"]
    while True:
        body = {"model": MODEL, "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
        command = [
            "curl",
            "--silent",
            "--fail-with-body",
            *headers,
            "--data",
            "@-",
            f"{BASE}/chat/completions",
        ]
        answer = subprocess.run(
            command, input=json.dumps(body).encode(), stdout=subprocess.PIPE, check=True
        ).stdout
        said = json.loads(answer)["choices"][0]["message"]
        if not said.get("tool_calls"):
            return said["content"]
        messages.append(said)
        for call in said["tool_calls"]:
            content = weather(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


CLIENTS = {
    "openai": openai_sync,
    "openai-async": openai_async,
    "openai-stream": openai_stream,
    "openai-agents-chat": lambda: agents("chat_completions"),
    "openai-agents-responses": lambda: agents("responses"),
    "openai-agents-stream": agents_stream,
    "langgraph": langgraph,
    "langgraph-responses": lambda: langgraph(use_responses_api=True),
    "langgraph-stream": lambda: langgraph(streaming=True),
    "pydantic-ai": pydantic_ai,
    "agentscope": agentscope,
    "anthropic": lambda: anthropic(False),
    "anthropic-stream": lambda: anthropic(True),
    "curl": curl,
}

if __name__ == "__main__":
    outcome = CLIENTS[sys.argv[1]]()
    print(outcome if isinstance(outcome, str) else asyncio.run(outcome))  # noqa: T201
