"""What stops an organization, an account or a symbol from trading."""
