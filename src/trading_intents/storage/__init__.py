"""PostgreSQL: the embedded server, pools, transactions, migrations. Knows no feature."""
