"""Tools for AI agents, by the Model Context Protocol. All but `server.py` works without the extra
`mcp`."""
