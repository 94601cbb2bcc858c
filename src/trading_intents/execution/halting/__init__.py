"""Halts at work: cancels what is open and closes what is held, account by account."""
