"""Broker integrations. They know neither each other nor any feature that uses them."""
