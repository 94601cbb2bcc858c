"""Tests of keys, tokens and the embedded identity provider, and the issuer they use."""
