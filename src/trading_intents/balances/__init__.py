"""Balances: an account's money, as its broker last reported it."""
