"""The pool of ready instances."""

import anyio
import pytest

from runtimes import InstanceSpec, Limits
from runtimes.process import ProcessRuntime

BOTH = InstanceSpec(warm=frozenset({"python", "bash"}), env={"POOLED": "yes"})


@pytest.mark.promise("instances:pool")
async def test_ready_instances_are_handed_out_and_replaced() -> None:
    async with ProcessRuntime(preload=(), pool=2, pool_spec=BOTH, idle=False) as runtime:
        await runtime.warmup()
        instances = [await runtime.start(BOTH) for _ in range(5)]
        assert len({instance.id for instance in instances}) == 5
        for number, instance in enumerate(instances):
            await instance.write("mine", str(number).encode())
        for number, instance in enumerate(instances):
            assert (await instance.run("bash", "cat mine; echo $POOLED")).stdout == f"{number}yes\n"
            assert (await instance.run("python", "open('mine').read()")).value == f"'{number}'"


@pytest.mark.promise("instances:pool")
async def test_pooled_sessions_are_started_in_advance() -> None:
    async with ProcessRuntime(preload=(), pool=1, pool_spec=BOTH, idle=False) as runtime:
        await runtime.warmup()
        instance = await runtime.start(BOTH)
        assert (await instance.usage()).processes == 2


@pytest.mark.promise("instances:pool:other")
async def test_a_request_for_another_spec_gets_a_new_instance() -> None:
    async with ProcessRuntime(preload=(), pool=1, pool_spec=BOTH, idle=False) as runtime:
        await runtime.warmup()
        spec = InstanceSpec(limits=Limits(open_files=2048))
        instance = await runtime.start(spec)
        assert instance.spec == spec
        assert (await instance.run("bash", "ulimit -n; echo ${POOLED-no}")).stdout == "2048\nno\n"


@pytest.mark.promise("instances:pool:other")
async def test_a_runtime_can_be_left_while_its_pool_is_being_filled() -> None:
    async with ProcessRuntime(preload=(), pool=8, pool_spec=BOTH, idle=False):
        await anyio.lowlevel.checkpoint()


@pytest.mark.promise("instances:pool")
async def test_concurrent_callers_each_get_an_instance() -> None:
    names: set[str] = set()
    async with ProcessRuntime(preload=(), pool=2, pool_spec=BOTH, idle=False) as runtime:

        async def take() -> None:
            instance = await runtime.start(BOTH)
            result = await instance.run("bash", "hostname")
            assert result.stdout == "sandbox\n"
            names.add(instance.id)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(take)
    assert len(names) == 10
