"""Math with a code tool: an example of tuning an agent. See README.md."""
