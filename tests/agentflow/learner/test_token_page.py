"""`agentflow tokens`: the tokens of stored rollouts."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs
from tokenizers import Tokenizer, decoders, models

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.gateway import AgentSettings, EpisodeOutcome, GatewaySettings, recorded_calls
from agentflow.learner import Batch, Group, RunTokens, Sample
from agentflow.learner._checkpoints import RolloutStore
from agentflow.learner.losses import LossSettings, step_rows
from agentflow.trace import Piece, Tokens, token_texts
from agentflow.tuner._gateway_rollout import episode_samples
from tests.agentflow.gateway._registry import OWNER, ask, offers, registry_at

HOSTILE = "<script>alert(1)</script>\x1b]0;title\x07\u202e"
WORDS = ["▁the", "▁cat", "▁sat", HOSTILE, "<|end|>"]
THE, CAT, SAT, EVIL, END = range(5)
E_ACUTE = tuple(5 + byte for byte in "é".encode())


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer as those of Llama: words with a space before them, and bytes."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    vocabulary |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def tokens(prompt: tuple[int, ...], sampled: tuple[int, ...], **more: object) -> Tokens:
    logprobs = tuple(-0.5 * number for number in range(1, len(sampled) + 1))
    return Tokens(prompt=prompt, sampled=sampled, logprobs=logprobs, **{"version": "2", **more})  # pyright: ignore[reportArgumentType]


def samples() -> list[Sample]:
    """Two groups: one of two agents with four rewards, one with equal rewards."""
    first = tokens((THE,), (CAT, EVIL, END))
    split = tokens((*first.prompt, *first.sampled, THE), E_ACUTE, versions=(("2", 0, 1), ("3", 1, 2)))
    branch = tokens((*first.prompt, *first.sampled, SAT), (CAT,))
    cut = tokens((THE, SAT), (CAT, CAT), finish="length")
    return [
        Sample(
            task="t@0#wolf",
            id="t@0/0#wolf",
            reward=-1.0,
            calls=(first, split, branch),
            turn_rewards=(0, 1, 0),
        ),
        Sample(task="t@0#wolf", id="t@0/1#wolf", reward=2.5, calls=(first, cut)),
        Sample(task="t@0#owl", id="t@0/0#owl", reward=0.0, calls=(tokens((SAT,), (CAT,)),)),
        Sample(task="t@0#owl", id="t@0/1#owl", reward=1.0, calls=(tokens((SAT,), (CAT,)),)),
        Sample(task="u@1", id="u@1/0", reward=1.0, calls=(tokens((SAT,), (CAT,)),)),
        Sample(task="u@1", id="u@1/1", reward=1.0, calls=(tokens((SAT,), (THE,)),)),
    ]


def write_run(folder: Path, loss: str = "{filter_groups: true, train_cut: false}") -> Path:
    """Store a step of those samples, with the settings and the tokenizer of the run."""
    groups = (
        Group(number=0, name="t@0", samples=tuple(samples()[:4])),
        Group(number=1, name="u@1", samples=tuple(samples()[4:])),
    )
    RolloutStore(folder / "rollouts").write(Batch(step=3, version=2, taken=2, groups=groups))
    (folder / "settings.yaml").write_text(f"loss: {loss}\npolicy: {{model: {folder / 'model'}}}\n")
    write_tokenizer(folder / "model")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["tokens", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


@pytest.mark.promise("tokens:page")
def test_advantages_and_masks_are_those_of_the_loss(run: Path) -> None:
    known = RunTokens(run)
    episodes = list(known.episodes())
    rows, figures = step_rows(samples(), known.loss)
    trained = [
        (call, advantage)
        for episode in episodes
        for number, call in enumerate(episode.sample.calls)
        if (advantage := episode.advantage_of(number)) is not None
    ]
    assert [row.ids[row.trained].tolist() for row in rows] == [list(call.sampled) for call, _ in trained]
    assert [row.advantages[0].item() for row in rows] == pytest.approx(
        [advantage for _, advantage in trained]
    )
    assert sum(episode.trained_tokens() for episode in episodes) == figures["tokens/trained"]
    assert [episode.advantage for episode in episodes[4:]] == [None, None]
    assert LossSettings(filter_groups=True, train_cut=False) == known.loss


@pytest.mark.promise("tokens:page")
def test_the_page_shows_the_credit_of_nodes_and_refuses_nodes_that_are_no_path(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "{credit: siblings, divide_by_std: false}")
    tree = [
        structs.replace(sample, turn_rewards=(), nodes=nodes)
        for sample, nodes in zip(samples()[:2], (("0", "0-0", "0-0"), ("0", "0-1")), strict=True)
    ]
    store, group = RolloutStore(run / "rollouts"), Group(number=0, name="t@0", samples=tuple(tree))
    store.write(Batch(step=3, version=2, taken=1, groups=(group,)))
    shown_advantages = [episode.call_advantages for episode in RunTokens(run).episodes()]
    assert shown_advantages == [(0.0, -1.75, -1.75), (0.0, 1.75)]
    broken = structs.replace(group, samples=(structs.replace(tree[0], nodes=("0", "1", "0")), tree[1]))
    store.write(Batch(step=3, version=2, taken=1, groups=(broken,)))
    with pytest.raises(ConfigurationError, match=r"step_000003.*: call 1 is at node 1, which is not below 0"):
        list(RunTokens(run).episodes())


@pytest.mark.promise("tokens:page")
def test_each_sampled_token_is_trained_in_one_row_with_its_figures(run: Path) -> None:
    wolf = next(RunTokens(run).episodes(3))
    pieces = [piece for _, row in wolf.rows() for piece in row if piece.kind == "trained"]
    assert [(piece.call, piece.ids, piece.version) for piece in pieces] == [
        ("1", (CAT, EVIL, END), "2"), ("2", E_ACUTE[:1], "2"), ("2", E_ACUTE[1:], "3"), ("3", (CAT,), "2"),
    ]  # fmt: skip
    assert [piece.advantage for piece in pieces] == [wolf.call_advantages[place] for place in (0, 1, 1, 2)]
    assert len(set(wolf.call_advantages)) == 3
    assert [(call.id, call.reason, call.note) for call in wolf.calls()] == [
        ("1", "opening", ""), ("2", "append", "continues 1"), ("3", "branch", "continues 1"),
    ]  # fmt: skip


@pytest.mark.promise("tokens:page")
def test_the_table_lists_episodes_and_totals(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, str(run))
    lines = [line.split() for line in table.splitlines()]
    assert lines[1][:9] == ["3", "t@0/0#wolf", "-1", "-0.707", "2", "3", "2", "13", "9"]
    assert lines[1][-2:] == ["branch", "1"]
    assert "left out" in table.splitlines()[5]
    assert table.splitlines()[-1] == (
        "6 episodes: 9 calls in 8 rows of 29 tokens, 24 unique, 38% trained, drift 0"
    )
    told = json.loads(shown(capsys, str(run), "--agent", "owl", "--json"))
    assert [(each["episode"], each["figures"]["calls"]) for each in told["episodes"]] == [
        ("t@0/0#owl", 1), ("t@0/1#owl", 1),
    ]  # fmt: skip


@pytest.mark.promise("tokens:page")
def test_an_episode_is_shown_as_text_and_as_a_page_that_obeys_no_token(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    text = shown(capsys, str(run), "--episode", "t@0/0", "--agent", "wolf", "--html", str(page))
    assert "the cat<script>alert(1)</script>]0;title<|end|> theé" in text
    assert "\x1b" not in text
    assert "t@0/0#wolf, agent wolf, step 3: reward -1, advantage -0.707" in text
    written = page.read_text()
    assert "<script" not in written
    assert "\x1b" not in written
    assert "default-src 'none'" in written
    assert 'class="worse" style="--p:0.55" title="3: -0.500, version 2, advantage -1.154"> cat<' in written
    spans = re.findall(r'class="trained" style="--p:[0-9.]+" title="([^"]+)">([^<]*)<', written)
    assert [(title, html.unescape(said)) for title, said in spans[:2]] == [
        ("1: -0.500, version 2, advantage +0.187", " cat"),
        ("1: -1.000, version 2, advantage +0.187", "<script>alert(1)</script>]0;title"),
    ]
    assert 'class="context" title="1"' in written  # the answer that another row trains
    cut = shown(capsys, str(run), "--episode", "t@0/1#wolf")
    assert "not trained" in cut


@pytest.mark.promise("tokens:page")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--episode", "x"),
            "--episode: x is not in the stored rollouts; `agentflow tokens {run}` lists them",
        ),
        (("--agent", "bear"), "--agent: there is no agent bear; known: owl, wolf"),
        (("--step", "4"), "{run}: step 4 is not stored; there are 3 to 3"),
        (("--html", "{run}"), "--html: {run} can't be written: Is a directory"),
    ],
)
def test_what_is_not_there_is_an_error_of_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], message: str
) -> None:
    error = shown(capsys, str(run), arguments[0], arguments[1].format(run=run), status=2)
    assert error == f"agentflow: {message.format(run=run)}\n"


@pytest.mark.promise("tokens:page")
def test_a_folder_without_rollouts_or_settings_is_an_error_of_one_line(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no rollouts/step_*.jsonl.gz" in shown(capsys, str(tmp_path), status=2)
    (run / "settings.yaml").write_text("loss: {clip_rato_low: 1}")
    assert "settings.yaml: loss: clip_rato_low is unknown" in shown(capsys, str(run), status=2)
    (run / "settings.yaml").unlink()
    assert "settings.yaml: no such file" in shown(capsys, str(run), status=2)
    RolloutStore(run / "rollouts").path(3).write_bytes(b"x")
    (run / "settings.yaml").write_text("{}")
    assert "can't be read" in shown(capsys, str(run), status=2)


@pytest.mark.promise("tokens:page")
def test_without_a_tokenizer_ids_are_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "model" / "tokenizer.json").unlink()
    assert main(["tokens", str(run), "--episode", "u@1/0"]) == 0
    told = capsys.readouterr()
    assert "has no tokenizer.json on this machine" in told.err
    assert f"{SAT} {CAT} " in told.out
    (run / "model" / "tokenizer.json").write_text("{")
    assert main(["tokens", str(run), "--episode", "u@1/0"]) == 0
    assert "can't be read" in capsys.readouterr().err


@pytest.mark.promise("tokens:page")
def test_a_token_without_text_is_shown_by_its_id_and_broken_characters_end() -> None:
    def decode(ids: Sequence[int]) -> str:
        return bytes(id for id in ids if id < 256).decode(errors="replace")

    broken = Piece(kind="trained", call="1", ids=(300, *(200,) * 20, 97), logprobs=(-1.0,) * 22)
    parts = list(token_texts([Piece(kind="context", ids=(97,)), broken], decode))
    assert [part.text for part in parts[:2]] == ["a", "‹300›"]
    assert sum(len(part.ids) for part in parts) == 23
    assert parts[-1].text.endswith("a")


@pytest.mark.promise("tokens:page")
async def test_an_episode_of_a_gateway_has_the_origins_of_its_prompts_and_only_received_answers(
    tmp_path: Path,
) -> None:
    settings = GatewaySettings(
        agents={"wolf": AgentSettings(trained=True), "owl": AgentSettings(trained=True)}
    )
    outcome = EpisodeOutcome(reward={"wolf": 1.0, "owl": 0.0})
    async with registry_at(tmp_path / "gateway", settings) as registry:
        await registry.slots.offer(offers("t@0", size=1))
        begun = await registry.begin(OWNER)
        assert begun is not None
        for agent, question, received in (
            ("wolf", "one", True),
            ("owl", "seven", True),
            ("wolf", "lost", False),
        ):
            live, name = registry.find(begun.keys[agent])
            answers = await live.complete(name, ask(question), "")
            live.delivered([answer.id for answer in answers], received)
        await registry.end(OWNER, begun.episode, 1, outcome)
        calls = recorded_calls(tmp_path / "gateway", begun.episode)
    assert [(call.agent, call.delivered) for call in calls] == [
        ("wolf", True),
        ("owl", True),
        ("wolf", False),
    ]
    told = episode_samples(calls, outcome, group="t@0", id=begun.episode, temperature=1.0)
    RolloutStore(tmp_path / "rollouts").write(
        Batch(step=1, version=0, taken=1, groups=(Group(number=0, name="t@0", samples=told),))
    )
    (tmp_path / "settings.yaml").write_text("loss: {}")
    owl, wolf = RunTokens(tmp_path).episodes()
    assert (owl.agent, wolf.agent) == ("owl", "wolf")
    assert [(call.id, call.origin, call.note) for call in wolf.calls()] == [
        ("1", "opening", "prompt: opening")
    ]
    assert [piece.ids for _, row in wolf.rows() for piece in row if piece.kind == "trained"] == [(3, 3)]
    assert [piece.call for _, row in wolf.rows() for piece in row if piece.kind == "trained"] == ["1"]
    (tmp_path / "gateway" / "episodes.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match=r"episodes\.db: can't be read"):
        next(RunTokens(tmp_path).episodes()).calls()
