"""Thin programs, run from the checkout; each says how in its docstring."""
