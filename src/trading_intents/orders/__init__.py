"""Orders, trades and positions: what is true at the brokers, from the facts that were seen."""
