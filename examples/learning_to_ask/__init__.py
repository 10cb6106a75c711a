"""Learning to ask: an example of tuning an agent. See README.md."""
