"""Intents: commands are decided, appended to the account's log, and queued for the broker."""
