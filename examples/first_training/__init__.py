"""The first training: a tiny planner learns to use a search and a Python session, on a laptop's processor."""
