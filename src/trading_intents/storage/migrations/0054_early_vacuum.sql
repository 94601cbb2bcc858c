-- Each order leaves one dead row in orders and in commands, and two in the outbox. They are removed when they are a
-- hundredth of the table, not a fifth: what reads pass over stays small however long the history is.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE orders SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
ALTER TABLE commands SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
