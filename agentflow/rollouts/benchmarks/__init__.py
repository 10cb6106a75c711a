"""Benchmarks: ten by name, others described by a file. See docs/benchmarks.md."""

from agentflow.rollouts.benchmarks._benchmark import Benchmark, Category, reorder_options
from agentflow.rollouts.benchmarks._readers import references
from agentflow.rollouts.benchmarks._registry import benchmark_names, find_benchmark, load_tasks, read_plain
from agentflow.rollouts.benchmarks._rows import BenchmarkRow, read_rows
from agentflow.rollouts.benchmarks._sources import HUB, find_data, published_files

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
