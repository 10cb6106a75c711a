"""Tests of verified tasks."""
