-- Venues of coins take their fee from the coin that was bought: what they took so far lowers the position's quantity.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE positions ADD COLUMN fee_quantity numeric NOT NULL DEFAULT 0;
