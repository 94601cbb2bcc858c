"""The trader's commands. They use the public API by its Python client, and nothing else of the platform."""
