"""What limits are judged by beside themselves: open orders, positions, prices, the last orders, today's result."""
