"""Execution: sends commands to the brokers and records their outcomes."""
