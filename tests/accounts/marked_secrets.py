"""Secrets that are recognized wherever they appear."""

MARK = "marked-secret-7f3a9c"
SECRETS = {"api_key_id": f"{MARK}-id", "api_secret": f"{MARK}-secret"}
