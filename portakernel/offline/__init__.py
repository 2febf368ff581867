"""Compiling kernels without running them: for targets that are not in this machine, and ahead of calls on this one."""
