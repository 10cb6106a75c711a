"""Benchmarks: ten by name, others by a file, each with the way its tasks are read, asked and scored."""

from agentflow.rollout.benchmarks._benchmark import Benchmark, Category
from agentflow.rollout.benchmarks._load import load_tasks
from agentflow.rollout.benchmarks._readers import references
from agentflow.rollout.benchmarks._registry import benchmark_names, find_benchmark
from agentflow.rollout.benchmarks._rows import BenchmarkRow, read_rows

__all__ = [
    "Benchmark",
    "BenchmarkRow",
    "Category",
    "benchmark_names",
    "find_benchmark",
    "load_tasks",
    "read_rows",
    "references",
]
