-- In steps: orders that their broker links. What part of its entry an order is, and whether it works. A column with a
-- constant default rewrites nothing, and the index is made beside running submits.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, ban-concurrent-index-creation-in-transaction
-- squawk-ignore-file prefer-robust-stmts
ALTER TABLE orders
    ADD COLUMN IF NOT EXISTS leg text,
    ADD COLUMN IF NOT EXISTS parent_order_id uuid,
    ADD COLUMN IF NOT EXISTS active boolean NOT NULL DEFAULT true;
-- It waits for older transactions, a backup's too, and keeps nobody from working meanwhile.
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS orders_by_parent;
CREATE INDEX CONCURRENTLY orders_by_parent ON orders (account_id, parent_order_id, create_seq)
WHERE parent_order_id IS NOT NULL;
