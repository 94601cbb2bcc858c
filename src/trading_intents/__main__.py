"""`python -m trading_intents` is the command `trading-intents`."""

from trading_intents_client.cli import main

main()
