"""The stream over gRPC."""
