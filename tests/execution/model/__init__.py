"""A worker's turn as an explicit-state model: every interleaving of its two trips with crashes,
freezes, takeovers, unknown commits and lost answers. Imports nothing of the platform."""
