"""`trading-intents`, which looks for unfinished deletions of users all the time: python -m
tests.access.impatient"""

from trading_intents.identity import users
from trading_intents_client.cli import main

users.RESUME_SECONDS = 0.2

if __name__ == "__main__":
    main()
