"""The paper broker: a simulated venue that keeps its book in the database. Knows nothing of intents
or orders."""
