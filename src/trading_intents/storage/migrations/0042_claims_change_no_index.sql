-- No index has what a claim changes any more, and a page has room for the rows' next versions: claims are HOT updates.
-- A finished row has an error if and only if it failed, so that indexes need not name the status.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation
-- squawk-ignore-file require-concurrent-index-deletion, constraint-missing-not-valid
ALTER TABLE outbox ADD CONSTRAINT outbox_error_fits_status CHECK (
    CASE status WHEN 'completed' THEN last_error IS NULL WHEN 'failed' THEN last_error IS NOT NULL ELSE true END
);
DROP INDEX outbox_claimed;
DROP INDEX outbox_accounts_health;
DROP INDEX outbox_finished;
CREATE INDEX outbox_accounts ON outbox (id) WHERE queue = 'accounts';
CREATE INDEX outbox_completed ON outbox (queue, finished_at) WHERE finished_at IS NOT NULL AND last_error IS NULL;
CREATE INDEX outbox_failed ON outbox (queue) WHERE finished_at IS NOT NULL AND last_error IS NOT NULL;
ALTER TABLE outbox SET (fillfactor = 50);
