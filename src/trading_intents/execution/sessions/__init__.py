"""Leases of accounts, and the broker sessions of those that this process holds."""
