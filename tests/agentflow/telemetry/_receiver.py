"""A collector of OTLP over HTTP: a real server that decodes what programs send."""

from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """Spans and metrics that a collector has received."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[tuple[str, Span]] = []
        """Spans with the name of their service."""
        self.metrics: set[str] = set()
        self.requests: list[str] = []
        self.status = 200

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for _, span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        """Decode a request."""
        self.requests.append(path)
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                own = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.spans += [(own["service.name"], span) for span in scope.spans]
        else:
            for data in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {metric.name for scope in data.scope_metrics for metric in scope.metrics}


@contextmanager
def receiver() -> Generator[Receiver]:
    """Serve a collector at any free port."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if found.status == 200:
                found.take(self.path, body)
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
