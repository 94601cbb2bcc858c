"""Backups of the embedded database with its keys, and the way back from one. Starts no role of the platform."""
