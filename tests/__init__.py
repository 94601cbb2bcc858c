"""The test suite: mirrors src, one folder a feature."""
