"""PostgreSQL: runs it, connects to it and migrates it. Knows no feature and no feature's table."""
