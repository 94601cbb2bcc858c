"""The ledger of facts, orders, trades and positions: what a booking reads, matches and writes."""
