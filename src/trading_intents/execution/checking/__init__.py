"""What must always be true of all accounts, checked while the platform runs."""
