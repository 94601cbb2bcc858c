"""The paper broker: a venue of our own that keeps its book in the database. Knows nothing of intents or orders."""
