"""Tuner: train the model behind any agent, unchanged but for its base URL. See docs/tuner.md."""
