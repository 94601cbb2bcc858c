"""Tests of the FIX adapter, its session and its counterparts."""
