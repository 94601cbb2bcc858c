"""For how long an input may take the loop."""

MAX_SECONDS = 0.005  # of the loop, for one request
TRIES = 20  # the least counts: other programs on the machine make each of them longer
