-- What a broker said of an order, or what kept it, for people; `reason` is the code. Adding a column without a default
-- rewrites nothing: each table is locked for a moment.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE orders ADD COLUMN detail text;
ALTER TABLE facts ADD COLUMN detail text;
