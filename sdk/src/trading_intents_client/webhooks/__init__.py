"""Events of an account as signed webhooks: one at a time, in order, each at least once."""
