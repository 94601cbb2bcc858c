-- Final entries whose exits do not cover what they filled: since when, until they are flagged. Workers ask every second
-- which of them have been so for long, by this index, which is empty as a rule.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation
ALTER TABLE orders ADD COLUMN uncovered_since timestamptz;
CREATE INDEX orders_uncovered ON orders (uncovered_since) WHERE uncovered_since IS NOT NULL;
