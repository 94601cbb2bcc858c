-- In steps: an Idempotency-Key may be used again after 400 days. Two uses of one span of 400 days are too near, so the index
-- still refuses a double. It is made beside running submits; processes of the version before find keys by it too.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, ban-concurrent-index-creation-in-transaction
-- squawk-ignore-file prefer-robust-stmts
-- It waits for older transactions, a backup's too, and keeps nobody from working meanwhile.
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS actions_by_key;
CREATE UNIQUE INDEX CONCURRENTLY actions_by_key
ON actions (account_id, idempotency_key, (((created_at AT TIME ZONE 'UTC')::date - date '2020-01-01') / 400))
WHERE idempotency_key IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS actions_by_idempotency_key;
