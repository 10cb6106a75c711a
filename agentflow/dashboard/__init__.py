"""Pages that show runs: the live view, bundles that open from a file, and the report of a run.

`agentflow view RUN` serves the live view. See docs/view.md.
"""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.dashboard._bundle import BundleSummary, write_bundle
    from agentflow.dashboard._page_data import PageData, PageDataError, api_path
    from agentflow.dashboard._report import REPORT_PAGE, write_report
    from agentflow.dashboard._server import ServedView, ViewGuard, open_view

__all__ = [
    "REPORT_PAGE",
    "BundleSummary",
    "PageData",
    "PageDataError",
    "ServedView",
    "ViewGuard",
    "api_path",
    "open_view",
    "write_bundle",
    "write_report",
]

# A report needs no web server.
__getattr__ = lazy_exports(
    __name__,
    {
        "._bundle": ["BundleSummary", "write_bundle"],
        "._page_data": ["PageData", "PageDataError", "api_path"],
        "._report": ["REPORT_PAGE", "write_report"],
        "._server": ["ServedView", "ViewGuard", "open_view"],
    },
)
