"""Backups of the embedded database with its keys, and their restore. Starts no role of the
platform."""
