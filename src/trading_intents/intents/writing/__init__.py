"""The write path: commands that wait together are decided, recorded and committed in one
transaction."""
