"""What reads documents. It runs in a sandbox of its own for each document, never in the server."""

__all__: list[str] = []
