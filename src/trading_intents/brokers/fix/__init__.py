"""FIX 4.2 and 4.4: one adapter for every venue that speaks it. A venue is a profile, in a file of
its own."""
