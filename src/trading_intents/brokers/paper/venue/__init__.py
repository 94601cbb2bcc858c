"""The paper venue: one transaction for the waiting requests of all accounts, on tables of its
own."""
