"""Crypto venues by ccxt, as broker integrations of the Trading Intents Platform."""
