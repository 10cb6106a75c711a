"""The benchmark of one GPU, in its form for any device."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_packed_rows_have_no_more_noise_than_rows_one_by_one() -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--small", "--jobs", "trees,head,step", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert {
        "float32_values_noise",
        "bfloat16_gradient_noise",
        "head_speedup",
        "step_speedup",
    } <= figures.keys()
