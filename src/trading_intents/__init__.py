"""The Trading Intents Platform."""

__version__ = "0.1.0"
