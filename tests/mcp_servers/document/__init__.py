"""The document backend, on real files."""
