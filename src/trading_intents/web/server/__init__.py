"""The HTTP server: its socket, its connections, and what they may take of the process."""
