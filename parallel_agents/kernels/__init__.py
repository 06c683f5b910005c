"""Compiled, lock-free arithmetic: products, functions, layers, losses and optimizer steps of one agent at a time.

The order of every sum is written in the code, nothing is fused or reassociated by the compiler, and no library
computes. So the bytes of a result are the same on every CPU. See docs/kernels.md.
"""
