"""Benchmarks: ten by name, others described by a file. See docs/benchmarks.md."""

from agentflow.rollout.benchmarks._benchmark import Benchmark, Category, reorder_options
from agentflow.rollout.benchmarks._readers import references
from agentflow.rollout.benchmarks._registry import benchmark_names, find_benchmark, load_tasks, read_plain
from agentflow.rollout.benchmarks._rows import BenchmarkRow, read_rows
from agentflow.rollout.benchmarks._sources import HUB, find_data, published_files

__all__ = [
    "HUB",
    "Benchmark",
    "BenchmarkRow",
    "Category",
    "benchmark_names",
    "find_benchmark",
    "find_data",
    "load_tasks",
    "published_files",
    "read_plain",
    "read_rows",
    "references",
    "reorder_options",
]
