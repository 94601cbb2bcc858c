"""The Python client, against the real platform."""
