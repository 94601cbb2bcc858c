"""Checks what must always be true of all accounts, while the platform runs."""
