"""Callers: API keys, tokens, organizations, and what each caller may do."""
