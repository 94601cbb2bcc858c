"""The stream over gRPC."""

import os

# The C core of grpc reads this when it is imported, hence here: it writes a line of its own to standard error for each
# failed handshake, and our log is JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
