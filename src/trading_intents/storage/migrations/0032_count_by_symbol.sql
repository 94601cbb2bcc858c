-- What is open of a tracked account is counted by symbol only, and fewer indexes make counting cheaper: the tables of
-- recent orders are small, and pruned as a whole.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-deletion
DELETE FROM exposures WHERE symbol = '';
DROP INDEX order_rates_by_age;
DROP INDEX recent_creates_by_age;
