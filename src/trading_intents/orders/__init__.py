"""Orders, trades and positions, derived from the facts that were recorded of them."""
