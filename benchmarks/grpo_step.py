"""A step of GRPO on a real model: ours beside TRL's `GRPOTrainer`, with the same prompts, groups, lengths and rewards.

Run `python benchmarks/grpo_step.py [--shapes 60x60 400x60] [--steps N]`; it needs `make .venv-trl/.stamp .venv-vllm/.stamp`. Each side
trains SmolLM2 in a process of its own, one after the other: all weights, float32, AdamW, no KL, temperature 1, groups of 8. The
reward is the share of an answer's words that are in its prompt. Ours samples with vLLM on the CPU, through the gateway, and
computes each prompt once; TRL samples with `model.generate` or with transformers' continuous batching, whichever takes less
time in a trial step (`--sampling`), with the micro-batch that does. vLLM is no choice for TRL there: its server takes weights by
NCCL, which a CPU lacks, and `load_weights` in the same process does not reach the packed weights of a CPU.

Prints a line for each shape and side: seconds of rollout, step and publication, sampled tokens per second, memory of all processes
together at its peak, and the reward of the first and last step. The first step is not timed: it compiles and fills caches.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# TRL is in an environment of its own.

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TASKS, GROUP = 4, 8
"""Prompts and answers of each in a step."""
LEARNING_RATE, BETAS = 5e-5, (0.9, 0.99)
FLOORS = {"60x60": 1.0, "400x60": 1.5}
"""Least ratio of our steps per hour to TRL's."""
SAMPLING = ("generate", "continuous")


class Lengths(NamedTuple):
    """Lengths in tokens."""

    prompt: int
    answer: int

    @classmethod
    def of(cls, text: str) -> "Lengths":
        """Read `60x60`."""
        prompt, answer = text.split("x")
        return cls(int(prompt), int(answer))


def make_prompts(model: Path, shape: Lengths, count: int) -> list[list[dict[str, str]]]:
    """Return conversations of exactly so many tokens: words to be repeated, the same ones as often as needed."""
    from transformers import AutoTokenizer

    from examples.real_model.tasks import WORDS

    tokenizer = AutoTokenizer.from_pretrained(model)

    def conversation(words: list[str]) -> list[dict[str, str]]:
        return [{"role": "user", "content": " ".join(["Repeat these words, as often as you like:", *words])}]

    def length(words: list[str]) -> int:
        rendered: Any = tokenizer.apply_chat_template(
            conversation(words), add_generation_prompt=True, tokenize=False
        )
        return len(tokenizer.encode(rendered))

    random, prompts = Random(0), list[list[dict[str, str]]]()
    for _ in range(count):
        chosen = random.sample(WORDS, 12)
        # Each word is one token.
        words = [random.choice(chosen) for _ in range(shape.prompt - length([]))]
        assert length(words) == shape.prompt
        prompts.append(conversation(words))
    return prompts


def reward_of(answer: str, prompt: str) -> float:
    """Return the share of the answer's words that are in the prompt."""
    known, words = set(prompt.split()), answer.replace(",", " ").split()
    return fmean(word in known for word in words) if words else 0.0


def train_ours(model: Path, prompts: list[Any], shape: Lengths, steps: int, folder: Path) -> dict[str, Any]:
    """Train with the defaults of `tune`, apart from what both sides share."""
    import anyio

    from agentflow.learner.trackers import read_figures
    from agentflow.trace import Task
    from agentflow.tuner import atune
    from examples.library import ChatPolicy, chat

    tasks = [Task(index=i, id=str(i), question=prompt[0]["content"]) for i, prompt in enumerate(prompts)]

    async def answer(task: Task, policy: ChatPolicy) -> float:
        text = await chat(policy, shape.answer)([{"role": "user", "content": task.question}])
        return reward_of(text, task.question)

    async def run() -> None:
        await atune(
            answer,
            tasks,
            output_dir=str(folder),
            policy={"model": str(model)},
            episodes={"temperature": 1.0},
            schedule={
                "steps": steps,
                "tasks_per_step": TASKS,
                "episodes_per_task": GROUP,
                "save_steps": 1000,
            },
            optimizer={"learning_rate": LEARNING_RATE, "betas": BETAS, "weight_decay": 0.0},
            loss={"name": "grpo", "kl_coef": 0.0},
        )

    anyio.run(run)
    lines = list(read_figures(folder / "metrics.jsonl"))
    return {
        "rewards": [line["reward/mean"] for line in lines],
        "tokens": [line["tokens/trained"] for line in lines],
        **{
            phase: [line.get(f"seconds/{phase}") or 0.0 for line in lines]
            for phase in ("rollout", "step", "publish")
        },
    }


def trl_settings(lengths: Lengths, steps: int, folder: Path, sampling: str, rows: int) -> Any:  # noqa: ANN401 - a type of TRL
    """Return the settings that make TRL compute what we do."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=TASKS * GROUP // rows,
        num_generations=GROUP,
        max_completion_length=lengths.answer,
        use_transformers_continuous_batching=sampling == "continuous",
        learning_rate=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )


def train_trl(
    model: Path, prompts: list[Any], shape: Lengths, steps: int, folder: Path, sampling: str, rows: int
) -> dict[str, Any]:
    """Train with TRL."""
    from datasets import Dataset
    from trl import GRPOTrainer

    figures: dict[str, list[float]] = {"rewards": [], "tokens": [], "rollout": [], "step": [], "publish": []}

    def reward(
        prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: object
    ) -> list[float]:
        rewards = [
            reward_of(completion[0]["content"], prompt[0]["content"])
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        figures["rewards"].append(fmean(rewards))
        figures["tokens"].append(float(sum(map(len, completion_ids))))
        return rewards

    class TimedTrainer(GRPOTrainer):
        """Notes the seconds of the sampling and of the whole step."""

        def _generate(self, prompts: list[Any]) -> object:
            began = time.perf_counter()
            result = super()._generate(prompts)
            figures["rollout"].append(time.perf_counter() - began)
            return result

    trainer = TimedTrainer(
        model=str(model),
        reward_funcs=reward,
        args=trl_settings(shape, steps, folder, sampling, rows),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    ends = [time.perf_counter()]
    from transformers import TrainerCallback

    class Ends(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.perf_counter())

    trainer.add_callback(Ends())
    ends[0] = time.perf_counter()
    trainer.train()
    whole = [end - begin for begin, end in pairwise(ends)]
    figures["step"] = [total - rollout for total, rollout in zip(whole, figures["rollout"], strict=True)]
    figures["publish"] = [0.0] * steps
    return figures


class SideFailedError(Exception):
    """The process of a side ended with an error."""


def measure(side: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one side in a process of its own, and return its figures with the peak of its memory."""
    python = ROOT / (".venv" if side == "ours" else ".venv-trl") / "bin" / "python"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({**job, "side": side, "folder": str(folder / "run")}))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [python, __file__, "--job", folder / "job.json"], stdout=log, stderr=subprocess.STDOUT
        )
        peak, ended = [0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.5):
                peak[0] = max(peak[0], _memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        process.wait()
        ended.set()
        watcher.join()
    if process.returncode:
        raise SideFailedError(
            f"{side} ended with {process.returncode}:\n{(folder / 'log').read_text()[-3000:]}"
        )
    return {**json.loads((folder / "run.json").read_text()), "gib": peak[0] / 2**30}


def _memory(root: int) -> int:
    """Return the bytes of a process and all below it; shared pages count once."""
    try:
        process = psutil.Process(root)
        return sum(each.memory_full_info().pss for each in [process, *process.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0


def seconds_per_step(figures: dict[str, Any]) -> float:
    """Return the mean seconds of a timed step."""
    return sum(fmean(figures[phase][1:]) for phase in ("rollout", "step", "publish"))


def line_of(shape: str, side: str, figures: dict[str, Any]) -> str:
    """Return a line of the table."""
    phases = " + ".join(f"{fmean(figures[phase][1:]):.1f}" for phase in ("rollout", "step", "publish"))
    rate = fmean(figures["tokens"][1:]) / fmean(figures["rollout"][1:])
    rewards = figures["rewards"]
    return (
        f"{shape:>8} {side:<22} {seconds_per_step(figures):6.1f} s per step ({phases}), {rate:.0f} tokens/s, "
        f"{figures['gib']:.1f} GiB, {fmean(figures['tokens']) / TASKS / GROUP:.0f} tokens per answer, "
        f"reward {rewards[0]:.3f} to {rewards[-1]:.3f}"
    )


def run_job(path: Path) -> None:
    """Run one side."""
    job = json.loads(path.read_text())
    folder, shape = Path(job["folder"]), Lengths.of(job["shape"])
    common = (Path(job["model"]), job["prompts"], shape, job["steps"], folder)
    figures = (
        train_ours(*common)
        if job["side"] == "ours"
        else train_trl(*common, sampling=job["sampling"], rows=job["rows"])
    )
    folder.with_suffix(".json").write_text(json.dumps(figures))


def main() -> int:
    """Run both sides on each shape; exit with 1 if a ratio is below its floor."""
    parser = argparse.ArgumentParser(prog="benchmarks/grpo_step.py")
    parser.add_argument("--shapes", nargs="+", default=list(FLOORS), metavar="PROMPTxANSWER")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps; the first is not timed")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32], help="micro-batches that TRL tries")
    parser.add_argument(
        "--sampling", nargs="+", default=list(SAMPLING), help="ways of sampling that TRL tries"
    )
    parser.add_argument("--model", default="smollm2", help="a known model, or a folder")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        run_job(given.job)
        return 0
    from agentflow.serving import KNOWN_MODELS, fetch_model

    model = fetch_model(given.model) if given.model in KNOWN_MODELS else Path(given.model)
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for shape in given.shapes:
            prompts = make_prompts(model, Lengths.of(shape), given.steps * TASKS)
            job = {"model": str(model), "prompts": prompts, "shape": shape, "steps": given.steps}
            ours = measure("ours", job, Path(scratch, f"{shape} ours"))
            print(line_of(shape, "ours", ours), flush=True)
            trials: dict[tuple[str, int], float] = {}
            # First the way of sampling with the first micro-batch, then the micro-batch.
            ways = [(sampling, given.rows[0]) for sampling in given.sampling]
            for way in ways:
                trials[way] = _trial(job, way, Path(scratch, f"{shape} {way}"))
            sampling = min(trials, key=lambda way: trials[way])[0]
            for rows in given.rows[1:]:
                trials[sampling, rows] = _trial(job, (sampling, rows), Path(scratch, f"{shape} {rows}"))
            best = min(trials, key=lambda way: trials[way])
            theirs = measure(
                "trl", {**job, "sampling": best[0], "rows": best[1]}, Path(scratch, f"{shape} trl")
            )
            print(line_of(shape, f"TRL ({best[0]}, {best[1]} rows)", theirs), flush=True)
            ratios[shape] = seconds_per_step(theirs) / seconds_per_step(ours)
            print(f"{shape:>8} {ratios[shape]:.2f} x TRL's steps per hour (floor: {FLOORS.get(shape, 0)})")
    print(json.dumps({"ratios": ratios}))
    return int(any(ratio < FLOORS.get(shape, 0) for shape, ratio in ratios.items()))


def _trial(job: dict[str, Any], way: tuple[str, int], folder: Path) -> float:
    """Return the seconds of TRL's second step; infinite if it fails, as for lack of memory."""
    sampling, rows = way
    try:
        figures = measure("trl", {**job, "steps": 2, "sampling": sampling, "rows": rows}, folder)
    except SideFailedError as error:
        print(
            f"{job['shape']:>8} TRL tries {sampling}, {rows} rows: {str(error).splitlines()[0]}", flush=True
        )
        return inf
    seconds = seconds_per_step(figures)
    print(f"{job['shape']:>8} TRL tries {sampling}, {rows} rows: {seconds:.1f} s per step", flush=True)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
