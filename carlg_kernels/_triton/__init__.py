"""Triton kernels and their launchers: one file an op, imported by the first call of the op on a GPU."""
