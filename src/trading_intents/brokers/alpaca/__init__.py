"""Alpaca: orders by REST, updates by WebSocket, executions by the activities' event stream."""
