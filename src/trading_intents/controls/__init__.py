"""Controls that stop an organization, an account or a symbol from trading."""
