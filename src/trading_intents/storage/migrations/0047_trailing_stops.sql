-- Trailing stops, and what the paper venue keeps of them and of linked orders. The new constraints let more pass than the
-- old ones, so no row is looked at: each table is locked for a moment.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, ban-drop-constraint
-- squawk-ignore-file ban-alter-domain-with-add-constraint
ALTER DOMAIN order_type DROP CONSTRAINT valid;
ALTER DOMAIN order_type ADD CONSTRAINT valid
    CHECK (VALUE IN ('MARKET', 'LIMIT', 'STOP', 'STOP_LIMIT', 'TRAILING_STOP')) NOT VALID;
ALTER TABLE orders
    ADD COLUMN trail_amount amount,
    ADD COLUMN trail_bps bigint,
    DROP CONSTRAINT orders_prices_fit_type,
    ADD CONSTRAINT orders_prices_fit_type CHECK (
        (limit_price IS NOT NULL) = (order_type LIKE '%LIMIT')
        AND (order_type = 'TRAILING_STOP' OR (stop_price IS NOT NULL) = (order_type LIKE 'STOP%'))
        AND num_nonnulls(trail_amount, trail_bps) = (order_type = 'TRAILING_STOP')::integer
    ) NOT VALID;
ALTER TABLE paper_orders
    ADD COLUMN trail_amount numeric,
    ADD COLUMN trail_bps bigint,
    ADD COLUMN parent bigint,
    ADD COLUMN leg text,
    ADD COLUMN is_held boolean NOT NULL DEFAULT false,
    ADD COLUMN best_price numeric,
    ADD COLUMN told_stop numeric,
    ADD COLUMN told_at timestamptz;
