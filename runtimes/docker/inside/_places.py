"""Where things are inside every container."""

HOME = "/home/agent"
"""The workspace."""
LIBRARY = "/run/agentflow/lib"
"""This project's source, for the keeper."""
SOCKET = "/run/agentflow/socket"
"""Where the keeper finds the server."""
SAVED_FOLDERS = ("home/agent", "tmp", "dev/shm")
"""What a snapshot holds: all that the agent can write to."""
SHELL_ENTRY = "/etc/bash"
"""Sourced by the shell session for every command."""
OLD_PYTHON = 42
"""The status with which an interpreter that is too old gives up."""
