"""AppWorld: an example of tuning an agent in an environment with an installation of its own. See README.md."""
