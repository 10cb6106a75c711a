"""Mathematical answers as models write them."""

import threading

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.scoring import make_metric, score
from agentflow.scoring._math_verify import equal_by_math_verify, has_math_verify
from agentflow.trace import Task

RIGHT = [
    ("204", "204"), ("<answer>204</answer>", "204"), ("The final answer is 204.", "204"), ("**204**", "204"), ("Answer: 204", "204"),
    ("The answer is $204$.", "204"), (r"\boxed{204}", "204"), (r"$\boxed{204}$", "204"), (r"So it is $$\boxed{ 204 }$$.", "204"),
    (r"<answer>\boxed{204}</answer>", "204"), ("<answer> **204** </answer>", "204"), ("ANSWER: 204", "204"), ("answer is: 204", "204"),
    (r"**Final Answer:** $\boxed{204}$", "204"), ("Final answer: 204.", "204"), ("5 + 5 is 10.\n\n**Final Answer**\n204", "204"),
    ("It is 204.", "204"), ("The sum equals 204", "204"), ("Therefore, 204", "204"), ("204.0", "204"), ("$204", "204"), ("`204`", "204"),
    ("#### 72", "72"), ("48/2 = 24\n48+24 = 72\n#### 72", "72"), ("72", "She sold 48+24 = <<48+24=72>>72.\n#### 72"), ("#### 1,000", "1000"),
    ("<think>It may be 5 or 6.</think>204", "204"), ("It may be 5.</think>\n\n<answer>204</answer>", "204"),
    ("1e3", "1000"), ("1.5e3", "1500"), ("2e-3", "0.002"), ("6.02e23", r"6.02\times10^{23}"), (r"$6.02 \times 10^{23}$", "6.02e+23"),
    ("6.02 × 10^23", r"6.02 \cdot 10^{23}"), ("(1e3, 2)", "(1000, 2)"), ("3e - 2", "3e-2"), ("12,345", "12345"), (r"12{,}345", "12345"),
    (r"12,\!345", "12345"), (r"\dfrac{1}{2}", "0.5"), ("The answer is 1/2", r"\frac{1}{2}"), (r"\frac12", r"\frac{1}{2}"), ("50%", "0.5"),
    ("[0,1)", "0 <= x < 1"), (r"0 \le x < 1", "[0,1)"), (r"x \geq 5", r"[5, \infty)"), ("x > 5", r"(5, \infty)"), (r"x \leqslant 2", r"(-\infty, 2]"),
    ("-5<x<5", "(-5,5)"), ("5 >= x", r"(-\infty,5]"), (r"x \in [-2,7]", "[-2,7]"), (r"x \in [-2,7]", r"-2 \le x \le 7"), (r"(1,3) \cup (4,5]", "(4,5] ∪ (1,3)"),
    (r"\left(-\infty, \frac{1}{2}\right]", "(-oo, 0.5]"), ("x=3 or x=-3", "-3, 3"), (r"x = \pm 3", "3, -3"), (r"\{1, 2\}", "{2,1}"), ("y = 2x + 1", "y=1+2x"),
    (r"90^\circ", "90"), (r"5\text{ cm}^2", "5"), ("3.5 miles", "3.5"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"\frac{\pi}{2}", "pi/2"), (r"\text{even}", "Even"),
]  # fmt: skip
WRONG = [
    ("", "204"), (r"\boxed{}", "204"), ("<answer></answer>", "204"), ("205", "204"), ("<answer>205</answer>, not 204", "204"), ("-204", "204"),
    ("<think>204</think>205", "204"), ("<think>The answer is 204", "204"), ("The final answer is 205.", "204"), ("204 or 205", "204"), ("205 or 204", "204"),
    (r"\boxed{204} is wrong, it is \boxed{205}", "204"), ("I cannot say.", "204"), ("1e3", "100"), ("1e3", "3"), (r"6.02\times10^{22}", "6.02e23"),
    ("(0,1)", "[0,1)"), ("0 < x < 1", "[0,1]"), ("x > 5", r"[5,\infty)"), ("x < 5", r"(5,\infty)"), ("(1,2)", "(2,1)"), ("72\n#### 73", "72"), ("odd", "even"),
    ("1/3", "0.33"), (r"\frac{1}{2}", "2"), ("20 4", "204"), ("x^2", "2x"), ("50%", "0.05"), ("one hundred", "1000"), ("3 4", "7"),
]  # fmt: skip
ONLY_MATH_VERIFY = [
    ("**Answer:** 7 apples", "7"), ("$x < 1$", "$-x > -1$"), (r"$(p,q)=(3,2)$", "$(3,2)$"), (r"$\boxed{1}$ and $\boxed{-2}$", "$\\boxed{-2,1}$"),
    (r"Special: $\left[\begin{array}{cc}1 & 2 \\3 & 4\end{array}\right]$", r"$\begin{pmatrix}1 & 2 \\3 & 4\end{pmatrix}$"),
]  # fmt: skip
ENDLESS = [
    "$9^{9^{9^{9}}}$",
    r"\boxed{(10^9)!}",
    r"$(x+y+z)^{999}$ and $(x+y)^{99}$",
    r"$\sum_{k=1}^{10^9} \frac{1}{k^k}$",
]


@pytest.mark.promise("scoring:math-formats")
@pytest.mark.parametrize(("prediction", "reference"), RIGHT)
@pytest.mark.parametrize("math_verify", [True, False])
def test_a_right_answer_counts_in_every_usual_format(
    prediction: str, reference: str, math_verify: bool
) -> None:
    assert score("math", prediction, reference, math_verify=math_verify) == 1.0


@pytest.mark.promise("scoring:math-formats")
@pytest.mark.parametrize(("prediction", "reference"), WRONG)
@pytest.mark.parametrize("math_verify", [True, False])
def test_a_wrong_answer_does_not_count_in_any_format(
    prediction: str, reference: str, math_verify: bool
) -> None:
    assert score("math", prediction, reference, math_verify=math_verify) == 0.0


@pytest.mark.promise("scoring:math-verify")
@pytest.mark.parametrize(("prediction", "reference"), ONLY_MATH_VERIFY)
async def test_the_reason_names_the_comparison_that_decided(prediction: str, reference: str) -> None:
    assert has_math_verify()
    task = Task(index=0, id="t", question="?", references=(reference,))
    both, alone = make_metric("math"), make_metric("math", options={"math_verify": False})
    scored = await both.score(prediction, task)
    assert (scored.score, scored.reason) == (1.0, "decided by math-verify")
    scored = await alone.score(prediction, task)
    assert (scored.score, scored.reason) == (0.0, "decided by built-in comparison")
    assert (await both.score(reference, task)).reason == "decided by built-in comparison"


@pytest.mark.promise("scoring:math-verify")
@pytest.mark.parametrize(
    "text", [ENDLESS[0], *(pytest.param(text, marks=pytest.mark.soak) for text in ENDLESS[1:])]
)
def test_an_endless_comparison_ends_and_the_next_one_works(text: str) -> None:
    assert not equal_by_math_verify(text, ["$x+1$"])
    assert score("math", text, "x+1") == 0.0
    assert equal_by_math_verify("$-x > -1$", ["$x < 1$"]) is True


@pytest.mark.promise("scoring:math-verify")
def test_threads_share_the_helper() -> None:
    verdicts: list[tuple[int, bool | None]] = []

    def ask(number: int) -> None:
        verdicts.append((number, equal_by_math_verify(f"It is {number % 2}.", ["1"])))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(verdicts) == [(number, number % 2 == 1) for number in range(6)]


@pytest.mark.promise("scoring:math-formats")
async def test_many_answers_are_compared_at_once() -> None:
    metric = make_metric("math", options={"math_verify": False})
    task = Task(index=0, id="t", question="?", references=(r"\frac{\sqrt3}{2}",))
    answers = [r"\sin(\pi/3)", r"\tan(\pi/3)/2", r"\cos(\pi/3)", r"e^{\ln(3)/2}/2", r"\sinh(1)"] * 6
    scores: dict[int, float] = {}

    async def compare(place: int) -> None:
        scores[place] = (await metric.score(answers[place], task)).score

    async with anyio.create_task_group() as tasks:
        for place in range(len(answers)):
            tasks.start_soon(compare, place)
    assert [scores[place] for place in range(len(answers))] == [1.0, 1.0, 0.0, 1.0, 0.0] * 6


@pytest.mark.promise("scoring:math-formats")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_can_be_scored(prediction: str, reference: str) -> None:
    assert score("math", prediction, reference, math_verify=False) in {0.0, 1.0}
