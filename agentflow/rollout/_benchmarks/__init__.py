"""Benchmarks: ten by name, others by a file, each with the way its tasks are read, asked and scored."""

from agentflow.rollout._benchmarks._benchmark import Benchmark, Category
from agentflow.rollout._benchmarks._load import load_tasks
from agentflow.rollout._benchmarks._readers import references
from agentflow.rollout._benchmarks._registry import benchmark_names, find_benchmark
from agentflow.rollout._benchmarks._rows import Row, read_rows

__all__ = [
    "Benchmark",
    "Category",
    "Row",
    "benchmark_names",
    "find_benchmark",
    "load_tasks",
    "read_rows",
    "references",
]
