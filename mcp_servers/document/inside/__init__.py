"""Parsers of document formats. They run in a sandbox per document, never in the server."""

__all__: list[str] = []
