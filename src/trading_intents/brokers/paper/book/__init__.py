"""One account's book of one symbol: matching, linked orders, and what a fill does to cash and
position. Pure."""
