"""What is told of a step: figures of its batch, beside those of its loss."""

from statistics import fmean, pstdev

from agentflow.learner._groups import Batch

__all__ = ["batch_figures"]


def batch_figures(batch: Batch) -> dict[str, float]:
    """What the episodes of a step were like."""
    samples = batch.samples
    figures = {
        "groups/played": float(len(batch.groups)),
        "groups/flat_share": fmean([group.is_flat for group in batch.groups]) if batch.groups else 0.0,
        "reward/std": pstdev([sample.reward for sample in samples]) if samples else 0.0,
    }
    names = sorted({name for sample in samples for name in sample.details} - {"version"})
    for name in names:
        figures[f"episodes/{name}"] = fmean([sample.details.get(name, 0.0) for sample in samples])
    ages = [batch.version - sample.details.get("version", batch.version) for sample in samples]
    figures["staleness/mean"] = fmean(ages) if ages else 0.0
    figures["staleness/max"] = max(ages, default=0.0)
    for kind, count in sorted(batch.failures.items()):
        figures[f"episodes/failed_{kind}"] = float(count)
    for kind, count in sorted(batch.dropped.items()):
        figures[f"dropped/{kind}"] = float(count)
    return figures
