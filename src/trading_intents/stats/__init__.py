"""Stats of an account's intents."""
