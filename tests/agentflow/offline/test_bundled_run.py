"""Pairs of a run without settings: all bundled seeds over the bundled corpus."""

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import anyio
import pytest

from agentflow.synthesis import PAIRS, SURPLUS, SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisRun, seeds_for


@pytest.mark.promise("offline:run")
async def test_a_run_without_settings_gives_varied_questions_that_need_several_documents(
    tmp_path: Path,
) -> None:
    config = SynthesisConfig(output_dir=str(tmp_path), control=False)
    with anyio.fail_after(300):
        report = await SynthesisRun(config).run(seeds_for(config))
    pairs, surplus = (
        [json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        for name in (PAIRS, SURPLUS)
    )
    total = len(pairs)
    assert report.pairs == total >= 60
    assert {one["reason"] for one in surplus} <= set(report.surplus)
    kinds = Counter(one["metadata"]["kind"] for one in pairs)
    assert len(kinds) >= 6
    assert max(kinds.values()) <= total / 4
    based = [(one["answer"], {each["id"] for each in one["metadata"]["documents"]}) for one in pairs]
    assert all(first != second for first, second in combinations(based, 2))
    for one in pairs:
        assert one["metadata"]["hops"] >= 2
        assert len(one["metadata"]["documents"]) >= 2
        assert len(one["reasoning_steps"]) >= 3
        assert all(step["citations"] or step["computes"] for step in one["reasoning_steps"])
        assert set(one["metadata"]["support"]) <= set(one["metadata"]["path"])
    answers = Counter(one["answer"] for one in pairs if one["answer"] not in ("yes", "no"))
    assert max(answers.values()) <= 2
    assert {one["source_id"] for one in pairs} == {f"seed_{number:03}" for number in range(1, 13)}
    for one in pairs:
        question = one["question"]
        assert question[0].isupper()
        assert question.endswith("?")
        assert not any(gap in question for gap in ("__", "…", "[", "  "))
        assert len(question.split()) <= 32
    assert report.calls_per_pair <= 25
