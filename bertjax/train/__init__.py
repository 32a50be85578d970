"""Steps, loop, optimizer, checkpoints."""
