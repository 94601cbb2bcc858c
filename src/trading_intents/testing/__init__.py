"""Fakes and suites for tests of the platform and of broker integrations."""
