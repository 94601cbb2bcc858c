"""Descriptions of the API for other programs, made from what the platform says of itself."""
