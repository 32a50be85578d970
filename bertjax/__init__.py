"""BERT in JAX and Flax."""
