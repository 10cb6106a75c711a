"""Code that runs inside a sandbox: the loop of a Python session, its evaluator, the shell's program.

Standard library only: it is imported once, into the zygote, and forked with it.
"""

__all__: list[str] = []
