"""The event stream: its messages, and the log, which has every event before any subscriber gets
it."""
