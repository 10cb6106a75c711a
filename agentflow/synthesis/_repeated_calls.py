"""Calls of a tree, made again in fresh sandboxes: a question rests on results that anybody can get again."""

from dataclasses import dataclass
from functools import partial

from agentflow.engine import BranchSandboxes, ExecutorPort
from agentflow.journal import Page
from agentflow.synthesis._trimming import trimmed_path
from agentflow.trace import Action, ActionOutcome, Observation, Tree


@dataclass(frozen=True)
class CallRepeater:
    """Makes calls of trees again."""

    sandboxes: BranchSandboxes
    executor: ExecutorPort

    def on(self, tree: Tree, page: Page) -> "TreeCalls":
        """Return the calls of a tree, whose new outcomes are kept on its page."""
        return TreeCalls(self, tree, page)

    async def outcome(self, tree: Tree, node: str) -> ActionOutcome:
        """Make a call again, after those that it rests on."""
        outcome = ActionOutcome(Observation())
        async with self.sandboxes.reserve(1):
            sandbox = await self.sandboxes.base.fork() if self.sandboxes.stateful else self.sandboxes.base
            try:
                for action in _actions(tree, node):
                    outcome = await self.executor.act(sandbox, action)
            finally:
                if sandbox is not self.sandboxes.base:
                    await sandbox.close()
        return outcome


@dataclass(frozen=True)
class TreeCalls:
    """Calls of one tree. Implements `RepeatedCalls`."""

    repeater: CallRepeater
    tree: Tree
    page: Page

    async def fault(self, node: str) -> str:
        """Return why the call of a node does not give its result again; empty if it does, or must not be repeated."""
        repeater, tree = self.repeater, self.tree
        tools, is_repeatable = repeater.sandboxes.tools, repeater.sandboxes.is_repeatable
        if any(
            tools[action.tool].hints.open_world and not is_repeatable(action)
            for action in _actions(tree, node)
        ):
            return ""
        outcome = await self.page.once(f"again/{node}", ActionOutcome, partial(repeater.outcome, tree, node))
        if outcome.failure is not None:
            return f"the call that it rests on fails when it is made again: {outcome.failure.message}"
        if outcome.observation != tree.by_id[node].observation:
            return "the call that it rests on gives another result when it is made again"
        return ""


def _actions(tree: Tree, node: str) -> list[Action]:
    """Return the call of a node after those that it rests on."""
    actions = (tree.by_id[id].action for id in trimmed_path(tree, [node]))
    return [action for action in actions if action is not None]
