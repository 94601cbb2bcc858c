-- Lists are narrowed by status and time, and read in both orders. Open orders are few and have an index already.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation
CREATE INDEX orders_by_status ON orders (account_id, order_status, create_seq) WHERE finished_at IS NOT NULL;

-- A trade that is told of again gets a new seq and keeps received_at: all others are in the order of both.
ALTER TABLE trades ADD COLUMN is_retold boolean NOT NULL DEFAULT false;
ALTER TABLE trades NO FORCE ROW LEVEL SECURITY;
UPDATE trades SET is_retold = true
FROM (
    SELECT trade_id, booking, max(booking) OVER (
        PARTITION BY account_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS highest
    FROM trades
) AS told
WHERE trades.trade_id = told.trade_id AND told.booking < told.highest;
ALTER TABLE trades FORCE ROW LEVEL SECURITY;
CREATE INDEX trades_retold ON trades (account_id, seq) WHERE is_retold;
