"""Pure functions of arrays: the encoder and its heads."""
