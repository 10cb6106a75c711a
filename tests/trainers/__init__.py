"""Real trainers read exported folders, each in an environment of its own."""
