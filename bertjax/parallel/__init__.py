"""Meshes and sharding rules."""
