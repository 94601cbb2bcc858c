"""The write path: what waits becomes one transaction."""
