"""Reference prices: what an organization last knew a symbol to be worth."""
