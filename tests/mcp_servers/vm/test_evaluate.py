"""Evaluation: for each getter, one task that passes and one that fails, on a real desktop."""

import io
from typing import cast

import pytest
from openpyxl import Workbook
from PIL import Image

from runtimes import Machine
from tests.mcp_servers.live import Live
from tests.mcp_servers.vm._machines import machine_of
from tests.runtimes.desktop._waiting import eventually, launch, window


@pytest.fixture(scope="module")
async def prepared(live: Live) -> Live:
    """Desktop in use: a dialog is open, files are written."""
    await live.bash("cd ~; printf 'name,amount\\nAda,3\\nBob,4.50\\n' > sales.csv")
    await live.bash("""printf '{"user": {"name": "Ada", "tags": ["x", "y"]}, "count": 3}' > state.json""")
    await live.bash("echo 'The quick brown fox' > note.txt; mkdir -p folder; touch folder/a folder/b")
    await live.bash("head -c 200000 /dev/zero | tr '\\0' '[' > deep.json")
    machine = machine_of(live)
    await launch(machine, "zenity --question --title Question --text Sure")
    await window(machine, "Question")

    async def dialog_is_open() -> bool:
        return 'push-button "Yes"' in await machine.accessibility()

    await eventually(dialog_is_open)
    return live


def rule(**rules: object) -> dict[str, object]:
    return {"type": "rule", "rules": rules}


async def evaluated(live: Live, **evaluator: object) -> dict[str, object]:
    return await live.data("vm_evaluate", evaluator=evaluator)


NOTE = {"type": "vm_file", "path": "note.txt"}
STATE = {"type": "file", "path": "state.json"}
DEEP = {"type": "vm_file", "path": "deep.json"}
SALES = {"type": "vm_file", "path": "sales.csv"}


@pytest.mark.promise("vm:evaluate:getters")
@pytest.mark.parametrize(
    ("result", "passes", "fails"),
    [
        (NOTE, "The quick brown fox", "The slow brown fox"),
        ({"type": "workspace_file", "path": "note.txt"}, "The quick brown fox", ""),
        ({"type": "vm_process", "name": "zenity"}, "running", "not running"),
        ({"type": "process", "name": "no-such-program"}, "not running", "running"),
        ({"type": "vm_window_title"}, "Question", "Answer"),
        ({"type": "window", "application": "zenity"}, "Question", "Answer"),
        ({"type": "window", "application": "gimp"}, "", "Question"),
        ({"type": "windows"}, "Question", "Question\nOther"),
        ({"type": "list_directory", "path": "/home/agent/folder"}, "a\nb", "a"),
        ({"type": "vm_command_line", "command": ["wc", "-c", "/dev/null"]}, "0 /dev/null", "1 /dev/null"),
        ({"type": "command", "command": "echo $((6 * 7))", "shell": True}, "42", "43"),
        ({"type": "constant", "value": "same"}, "same", "other"),
    ],
    ids=lambda value: cast("dict[str, str]", value)["type"] if isinstance(value, dict) else "",
)
async def test_getters_read_the_state_of_the_machine(
    prepared: Live, result: dict[str, object], passes: str, fails: str
) -> None:
    for expected, score in ((passes, 1.0), (fails, 0.0)):
        evaluation = await evaluated(
            prepared, func="exact_match", result=result, expected=rule(expected=expected)
        )
        assert evaluation["score"] == score, evaluation


@pytest.mark.promise("vm:evaluate:getters")
async def test_a_node_of_the_accessibility_tree_is_found_by_role_and_name(prepared: Live) -> None:
    for name, score in (("Yes", 1.0), ("Maybe", 0.0)):
        node = {"type": "accessibility_tree", "role": "push-button", "name": name}
        expected = rule(include=['push-button "Yes"'])
        evaluation = await evaluated(prepared, func="check_include_exclude", result=node, expected=expected)
        assert evaluation["score"] == score, evaluation


@pytest.mark.promise("vm:evaluate:getters")
async def test_a_region_of_the_screen_is_compared_with_a_picture(prepared: Live, machine: Machine) -> None:
    region = {"type": "screen_region", "x": 0, "y": 0, "width": 50, "height": 40}
    for colour, options, score in (
        ((0, 0, 0), {}, 1.0),
        ((9, 9, 9), {"tolerance": 10}, 1.0),
        ((9, 9, 9), {"tolerance": 8}, 0.0),
        ((255, 255, 255), {"threshold": 0.5}, 0.0),
    ):
        packed = io.BytesIO()
        Image.new("RGB", (50, 40), colour).save(packed, "PNG")
        session = prepared.table.sessions.find(prepared.session, "local")
        await (await session.instance()).write("expected.png", packed.getvalue())
        expected = {"type": "workspace_file", "path": "expected.png"}
        evaluation = await evaluated(
            prepared, func="compare_image", result=region, expected=expected, options=options
        )
        assert evaluation["score"] == score, evaluation
    whole = await evaluated(
        prepared, func="compare_image", result={"type": "screen_region"}, expected=expected
    )
    assert whole["score"] == 0.0
    assert "800x600 pixels, expected 50x40" in str(whole["results"])


@pytest.mark.promise("vm:evaluate:comparers")
@pytest.mark.parametrize(
    ("func", "result", "expected", "options", "score"),
    [
        ("exact_match", NOTE, rule(expected="THE QUICK BROWN FOX"), {"ignore_case": True}, 1.0),
        ("fuzzy_match", NOTE, rule(expected="The quick brown box"), {"threshold": 0.9}, 1.0),
        ("fuzzy_match", NOTE, rule(expected="Something else"), {"threshold": 0.9}, 0.0),
        ("check_include_exclude", NOTE, rule(include=["quick"], exclude=["slow"]), {}, 1.0),
        ("check_include_exclude", NOTE, rule(include=["slow"], exclude=["quick"]), {}, 0.0),
        ("is_in_list", {"type": "list_directory", "path": "/home/agent/folder"}, rule(expected="b"), {}, 1.0),
        ("is_in_list", {"type": "list_directory", "path": "/home/agent/folder"}, rule(expected="c"), {}, 0.0),
        ("is_in_list", DEEP, rule(expected="c"), {}, 0.0),
        ("check_json", STATE, rule(expect=[{"key": ["user", "name"], "ref": "Ada"}]), {}, 1.0),
        (
            "check_json",
            STATE,
            rule(expect=[{"key": ["user", "tags", 1], "method": "in", "ref": "xyz"}]),
            {},
            1.0,
        ),
        ("check_json", STATE, rule(expect=[{"key": ["count"], "method": "gt", "ref": 3}]), {}, 0.0),
        ("check_json", STATE, rule(unexpect=[{"key": ["user", "age"], "method": "exists"}]), {}, 1.0),
        ("check_json", STATE, rule(expect=[{"key": ["user", "age"], "method": "exists"}]), {}, 0.0),
        ("compare_table", SALES, rule(expected=[["name", "amount"], ["Ada", 3], ["Bob", 4.5]]), {}, 1.0),
        ("compare_table", SALES, rule(expected=[["name", "amount"], ["Ada", 3], ["Bob", 4]]), {}, 0.0),
        (
            "compare_table",
            SALES,
            rule(expected=[["name", "amount"], ["Ada", 3], ["Bob", 4]]),
            {"tolerance": 0.5},
            1.0,
        ),
        ("compare_table", SALES, rule(expected=[["name", "amount"]]), {}, 0.0),
    ],
)
async def test_values_are_compared_by_each_function(
    prepared: Live,
    func: str,
    result: dict[str, object],
    expected: dict[str, object],
    options: dict[str, object],
    score: float,
) -> None:
    evaluation = await evaluated(prepared, func=func, result=result, expected=expected, options=options)
    assert evaluation["score"] == score, evaluation


@pytest.mark.promise("vm:evaluate:comparers")
async def test_a_spreadsheet_is_compared_with_a_table_of_text(prepared: Live) -> None:
    book = Workbook()
    book.create_sheet("Sales")
    for row in (["name", "amount"], ["Ada", 3], ["Bob", 4.5]):
        book["Sales"].append(row)
    packed = io.BytesIO()
    book.save(packed)
    session = prepared.table.sessions.find(prepared.session, "local")
    await (await session.instance()).write("sales.xlsx", packed.getvalue())
    sheet = {"type": "vm_file", "path": "sales.xlsx"}
    for name, score in (("Sales", 1.0), ("Sheet", 0.0)):
        evaluation = await evaluated(
            prepared, func="compare_table", result=sheet, expected=SALES, options={"sheet": name}
        )
        assert evaluation["score"] == score, evaluation
    kind, message = await prepared.failure(
        "vm_evaluate",
        evaluator={"func": "compare_table", "result": sheet, "expected": SALES, "options": {"sheet": "No"}},
    )
    assert (kind, "there is no sheet 'No'" in message) == ("failed", True)


@pytest.mark.promise("vm:evaluate:conj")
async def test_several_comparisons_are_combined_after_a_final_step(prepared: Live) -> None:
    made = {"type": "vm_file", "path": "made.txt"}
    steps = [{"type": "execute", "parameters": {"command": "echo made > made.txt"}}]
    both = {"func": ["exact_match"] * 2, "result": [made, NOTE], "postconfig": steps}
    expected = [rule(expected="made"), rule(expected="else")]
    for conj, score in (("and", 0.0), ("or", 1.0)):
        evaluation = await evaluated(prepared, **both, expected=expected, conj=conj)
        assert evaluation["score"] == score
        assert [
            comparison["score"] for comparison in cast("list[dict[str, object]]", evaluation["results"])
        ] == [1.0, 0.0]


@pytest.mark.promise("vm:evaluate:infeasible")
async def test_giving_up_scores_only_if_the_task_is_impossible(prepared: Live) -> None:
    right = {"func": "exact_match", "result": NOTE, "expected": rule(expected="The quick brown fox")}
    assert (await evaluated(prepared, func="infeasible"))["score"] == 0.0
    assert await prepared.data("vm_fail", reason="there is no printer") == {
        "fail": True,
        "reason": "there is no printer",
    }
    impossible = await evaluated(prepared, func="infeasible")
    assert (impossible["score"], impossible["last_action_failed"]) == (1.0, True)
    assert (await evaluated(prepared, **right))["score"] == 0.0
    assert await prepared.data("vm_done") == {"done": True}
    assert (await evaluated(prepared, **right))["score"] == 1.0


@pytest.mark.promise("vm:evaluate:errors")
@pytest.mark.parametrize(
    ("evaluator", "kind", "message"),
    [
        (
            {
                "func": "exact_match",
                "result": {"type": "vm_file", "path": "absent"},
                "expected": rule(expected=""),
            },
            "not_found",
            "there is no 'absent'",
        ),
        (
            {
                "func": "exact_match",
                "result": {"type": "command", "command": "exit 3"},
                "expected": rule(expected=""),
            },
            "failed",
            "exit code 3",
        ),
        ({"func": "exact_match", "result": NOTE}, "bad_arguments", "exact_match needs `expected`"),
        ({"func": "exakt_match", "result": NOTE}, "bad_arguments", "func"),
        (
            {"func": ["exact_match"], "result": NOTE, "expected": [rule(expected="")]},
            "bad_arguments",
            "`result` must be one, too",
        ),
        (
            {
                "func": "exact_match",
                "result": NOTE,
                "expected": rule(expected=""),
                "options": {"ignorecase": True},
            },
            "bad_arguments",
            "Did you mean 'ignore_case'?",
        ),
        ({"func": "check_json", "result": NOTE, "expected": rule(expect=[])}, "failed", "not JSON"),
        ({"func": "check_json", "result": DEEP, "expected": rule(expect=[])}, "failed", "not JSON"),
        (
            {
                "func": "check_json",
                "result": STATE,
                "expected": rule(expect=[{"key": ["count"], "method": "equal"}]),
            },
            "bad_arguments",
            "no method 'equal'",
        ),
        ({"func": "compare_image", "result": NOTE, "expected": NOTE}, "failed", "cannot be read"),
        (
            {
                "func": "compare_image",
                "result": {"type": "screen_region", "x": 700, "width": 200},
                "expected": NOTE,
            },
            "bad_arguments",
            "is not on the screen of 800x600",
        ),
    ],
)
async def test_a_failed_getter_or_comparison_is_an_error_and_not_a_score(
    prepared: Live, evaluator: dict[str, object], kind: str, message: str
) -> None:
    evaluation = await prepared.failure("vm_evaluate", evaluator=evaluator)
    assert evaluation[0] == kind, evaluation
    assert message in evaluation[1]
    assert "\n" not in evaluation[1]
