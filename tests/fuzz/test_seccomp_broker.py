"""Messages to the seccomp broker: any sequence of brokered calls leaves a sandbox its own user, without power."""

import pytest

from agentflow.errors import CannotFork
from runtimes import Instance
from runtimes.process import ProcessRuntime
from runtimes.process.linux._seccomp import NOTIFIED
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed
from tests.runtimes.process.hostile import PRELUDE

pytestmark = pytest.mark.promise("broker:fuzzed")

HONEST = (
    "enter(0)", "enter(1)", "enter(2)", "enter(3)", "confine.enter_root(); forget_namespaces()", "os.setgroups([])",
    "os.setresgid(uid, uid, uid)", "os.setresuid(uid, uid, uid)", "lower_power()", "close_all(control)",
)  # fmt: skip
"""Steps of the move that the runtime makes, between the first and the last."""
OTHERS = (
    "raise_power()", "sc.setns(-1, 0)", "sc.setns(FIRST_FD, 0)", "os.chroot('/')", "os.setgid(uid)", "os.setuid(0)",
    "os.setgroups([0])", "os.setresuid(-1, uid, -1)", "os.setresgid(uid, uid, 0)", "os.chdir('/')", "os.umask(0)",
    "sc.capset(effective=POWER, permitted=POWER, inheritable=POWER)", "sc.capset(effective=0, permitted=0)",
    "kept = open('/proc/self/status')", "attempt(os.fork)", "os.closerange(FIRST_FD, FIRST_FD + 20)",
)  # fmt: skip
STATE = "open('/proc/self/status').read().split('CapEff:')[1].split()[0].strip('0'), os.getresuid() == (os.getuid(),) * 3"


def moved(case: FuzzCase) -> str:
    """Return a move that is almost honest."""
    steps: list[str] = [*HONEST]
    for _ in range(case.randrange(3)):
        place = case.randrange(len(steps))
        match case.randrange(4):
            case 0:
                del steps[place]
            case 1:
                steps.insert(place, steps[case.randrange(len(steps))])
            case 2:
                steps.insert(place, case.choice(OTHERS))
            case _:
                other = case.randrange(len(steps))
                steps[place], steps[other] = steps[other], steps[place]
    return "\n    ".join(("raise_power()", *steps, "return be_checked(control)"))


def called(case: FuzzCase) -> str:
    """Return brokered calls with arbitrary arguments outside of a move."""
    values = (
        0,
        1,
        -1,
        1 << 32,
        (1 << 63) - 1,
        case.getrandbits(16),
        "os.getuid()",
        "os.getgid()",
        "bytes(64)",
    )
    calls = [
        f"call({case.choice([*NOTIFIED.values()])}, {', '.join(str(case.choice(values)) for _ in range(case.randrange(7)))})"
        for _ in range(20)
    ]
    return "; ".join(calls)


async def keeps_its_place(instance: Instance) -> bool:
    state = await instance.run("python", f"kept, {STATE}")
    return state.value == "(42, '', True)" and not state.state_lost


@fuzzed
async def test_no_sequence_of_brokered_calls_gives_power(
    budget: FuzzBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtimes.process._sessions._MOVE_DEADLINE", 5.0)
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        instance = await runtime.start()
        await instance.run("python", f"{PRELUDE}\nkept = 42")
        for case in budget.cases(short=12):
            with case:
                armed = f"def evil(uid, control):\n    {moved(case)}\nloop_globals['move'] = evil"
                assert (await instance.run("python", armed)).error is None
                try:
                    fork = await instance.fork()
                except CannotFork:
                    pass
                else:
                    assert await keeps_its_place(fork.instance)
                    await fork.instance.stop()
                await instance.run("python", called(case))
                assert await keeps_its_place(instance)
