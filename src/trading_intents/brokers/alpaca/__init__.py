"""Alpaca. What it can do is known; its link is still to come."""
