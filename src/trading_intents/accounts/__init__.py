"""Trading accounts, their broker credentials, and the vault that keeps the secrets."""
