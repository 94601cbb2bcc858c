"""The event stream: its messages, and the log that every event is in before anyone sees it."""
