"""Werewolves: an example of tuning one of two sides. See README.md."""
