"""PostgreSQL: running it, connecting to it, migrating it. Knows no feature and no table of one."""
