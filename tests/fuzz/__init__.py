"""Fuzzers: one module per target. Seconds in the short form, AGENTFLOW_FUZZ_SECONDS each in the long form."""
