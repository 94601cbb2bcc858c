"""Tests of trading_intents.storage."""
