"""Limits on the orders of an organization, an account or a symbol."""
