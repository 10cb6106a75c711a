"""Tests of agentflow.text."""
