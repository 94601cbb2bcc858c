"""Who is calling: API keys, tokens, organizations, and what each caller may do."""
