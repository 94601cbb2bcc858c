"""The state that limits are judged by: open orders, positions, prices, the last orders, today's
result."""
