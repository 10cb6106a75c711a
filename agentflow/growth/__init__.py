"""Growing trees: one frontier over all seeds."""
