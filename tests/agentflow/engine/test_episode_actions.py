"""Actions that may change the world wait until earlier results are on disk."""

from collections.abc import Iterator

import anyio
import pytest

from agentflow.engine._sandboxes import EpisodeActions, EpisodeSandbox
from agentflow.sandbox import Sandbox, register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.trace import Action, ActionOutcome, Observation
from tests._pages import SlowDisk


@pytest.fixture
def mail() -> Iterator[None]:
    """A tool that reaches the world and changes it, and one that only looks."""
    before = dict(registered_tools)

    @register_api_tool("mail:send")
    def send(text: str) -> str:
        """Send a letter.

        :param text: what it says
        """
        return text

    @register_api_tool("mail:read", read_only=True)
    def read() -> str:
        """Read the letters that came."""
        return ""

    assert callable(send) and callable(read)
    yield
    registered_tools.clear()
    registered_tools.update(before)


@pytest.mark.promise("journal:page:noted")
@pytest.mark.usefixtures("mail")
async def test_only_actions_that_may_change_the_world_wait_for_the_page() -> None:
    disk, done = SlowDisk(), list[str]()
    await disk.page.note("1/agent", "send it")

    class Record:
        async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
            done.append(action.tool)
            return ActionOutcome(Observation())

    async with Sandbox(backends=[]) as sandbox, anyio.create_task_group() as tasks:
        tools = {tool.name: tool for tool in await sandbox.tools("mail:*")}
        actions = EpisodeActions(disk.page, tools, Record(), EpisodeSandbox(sandbox, None), sandbox)
        tasks.start_soon(actions.run, Action("mail_send", {"text": "Hello."}))
        tasks.start_soon(actions.run, Action("mail_read", {}))
        await anyio.wait_all_tasks_blocked()
        assert done == ["mail_read"]
        disk.catch_up()
    assert done == ["mail_read", "mail_send"]
