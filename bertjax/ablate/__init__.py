"""Ablations: a grid of runs, each a workdir of its own, and one table of them."""
