"""The HTTP server: its socket, its connections, and the limits of what they may use."""
