"""A coding agent in a terminal: an example of tuning an agent. See README.md."""
