"""Forks in any order of use and closing: each keeps its own count, and everything ends with the last one."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.sandbox import Sandbox
from tests.agentflow.sandbox._backends import CounterBackend


@dataclass
class Member:
    """A sandbox, and what its counter should say."""

    sandbox: Sandbox
    value: int = 0


steps = st.lists(st.tuples(st.sampled_from(["up", "fork", "close", "reset"]), st.integers(0, 5)), max_size=25)


@pytest.mark.promise("sandbox:fork:independent")
@settings(max_examples=60, deadline=None)
@given(steps)
async def test_each_member_of_a_sandbox_family_has_its_own_counts(script: list[tuple[str, int]]) -> None:
    backend = CounterBackend()
    members = [Member(Sandbox(backends=[backend]))]
    await members[0].sandbox.start()
    for step, number in script:
        if not members:
            break
        member = members[number % len(members)]
        match step:
            case "up":
                member.value += number
                assert (await member.sandbox.execute("up", {"by": number})).data == {"result": member.value}
            case "fork":
                members.append(Member(await member.sandbox.fork(), member.value))
            case "reset":
                member.value = 0
                await member.sandbox.destroy_session()
            case _:
                members.remove(member)
                await member.sandbox.close()
        assert backend.life.count("shutdown") == int(not members and "warmup" in backend.life)
    for member in members:
        await member.sandbox.close()
    begun = sum(event.startswith(("initialize", "fork")) for event in backend.life)
    assert backend.life.count("cleanup") == begun, "every state that was made is given back"
    assert backend.life.count("shutdown") == backend.life.count("warmup")
