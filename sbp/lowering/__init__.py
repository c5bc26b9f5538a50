"""Lowering: from a plan to one SPMD program that jax runs."""
