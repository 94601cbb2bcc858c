"""Which accounts this process works, and its links to their brokers."""
