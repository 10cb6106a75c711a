"""Which way of starting containers goes by which name."""

from agentflow.errors import IsolationUnavailable
from runtimes.docker._options import ContainerOptions, Tier
from runtimes.docker._plan import Launcher


def make_launcher(tier: Tier, options: ContainerOptions) -> Launcher:
    """The way of starting containers that a tier stands for.

    :raises IsolationUnavailable: if its library is not installed.
    """
    if tier == "docker":
        try:
            from runtimes.docker._engine import EngineLauncher  # only who has an engine needs its client
        except ModuleNotFoundError as error:
            raise IsolationUnavailable(
                f"runtime docker needs {error.name}: pip install 'agentflow[docker]'"
            ) from None
        return EngineLauncher(options)
    from runtimes.docker._bundle import BundleLauncher

    return BundleLauncher(tier, options)
