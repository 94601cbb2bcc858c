"""The paper venue: one transaction for what waits of all accounts, on tables of its own."""
