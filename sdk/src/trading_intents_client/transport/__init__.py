"""Requests: credentials, retries, and answers that become structs or errors."""
