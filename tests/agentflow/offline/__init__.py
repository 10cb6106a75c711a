"""The offline engine."""
