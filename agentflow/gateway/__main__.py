"""`python -m agentflow.gateway`: a gateway whose settings are a JSON object on stdin. See docs/gateway.md."""

import gc
import sys

import anyio

from agentflow.errors import exit_report
from agentflow.gateway._process import run_gateway
from agentflow.gateway._settings import GatewaySettings
from agentflow.settings import parse_json
from agentflow.telemetry import Level, configure_logging, start_tracing


def main() -> int:
    """Run it; return the exit status."""
    configure_logging(Level.WARNING)
    start_tracing(service="agentflow-gateway")
    # Episodes are many small objects without cycles: rarer collections save a tenth of the CPU of a call.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        settings = GatewaySettings.model_validate(parse_json(sys.stdin.read(), "stdin"))
        anyio.run(run_gateway, settings)
    except BaseException as error:  # boundary of the program: every error is one line and a status
        report = exit_report(error, what="the gateway")
        if report.message:
            sys.stderr.write(f"{report.message}\n")
        return report.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
