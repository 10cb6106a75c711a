"""Which way of starting containers goes by which name."""

from runtimes.docker._options import ContainerOptions, Tier
from runtimes.docker._plan import Launcher


def make_launcher(tier: Tier, options: ContainerOptions) -> Launcher:
    """The way of starting containers that a tier stands for."""
    if tier == "docker":
        from runtimes.docker._engine import EngineLauncher  # only who has an engine needs its client

        return EngineLauncher(options)
    from runtimes.docker._bundle import BundleLauncher

    return BundleLauncher(tier, options)
