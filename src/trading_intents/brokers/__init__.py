"""Broker integrations. Independent of each other, and of every feature that uses them."""
