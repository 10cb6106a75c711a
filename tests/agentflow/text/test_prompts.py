"""Prompt files: versions, sections and placeholders."""

from pathlib import Path

import pytest

from agentflow.text import PromptFiles


@pytest.fixture
def prompts(tmp_path: Path) -> PromptFiles:
    (tmp_path / "judge.v2.md").write_text("# system\nOld.\n", encoding="utf-8")
    (tmp_path / "judge.v10.md").write_text(
        "# system\nJudge.\n\nRules: $rules\n\n# user\n$question {as written}\n", encoding="utf-8"
    )
    (tmp_path / "notes.md").write_text("# system\nNo prompt.\n", encoding="utf-8")
    return PromptFiles(tmp_path)


@pytest.mark.promise("team:prompts:versions")
def test_the_highest_version_of_a_prompt_is_used(prompts: PromptFiles) -> None:
    assert prompts.versions == {"judge": "v10"}


@pytest.mark.promise("team:prompts:versions")
def test_a_paragraph_with_an_empty_value_is_omitted(prompts: PromptFiles) -> None:
    assert prompts.fill("judge", "system", rules="") == "Judge."
    assert prompts.fill("judge", "system", rules="be brief") == "Judge.\n\nRules: be brief"


@pytest.mark.promise("team:prompts:versions")
def test_braces_and_dollars_of_a_value_and_a_template_stay_unchanged(prompts: PromptFiles) -> None:
    assert prompts.fill("judge", "user", question="{x} costs $y?") == "{x} costs $y? {as written}"
