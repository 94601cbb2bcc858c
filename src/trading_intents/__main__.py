"""`python -m trading_intents` is the command `trading-intents`."""

from trading_intents.cli import main

main()
