"""Halts: one call that stops an account or an organization, cancels its orders and closes its
positions."""
