"""The stream over gRPC."""

import os

# Set here because the C core of grpc reads it when it is imported: otherwise it writes a line of
# its own to standard error for each failed handshake, and our log is JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
