"""Execution: commands carried to the brokers, and what came of them written down."""
