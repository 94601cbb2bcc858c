-- Rows of the intents queue are claimed in turn over the accounts, urgent ones first: CANCELs, and what they cancel.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation, require-concurrent-index-deletion
ALTER TABLE outbox ADD COLUMN urgent boolean NOT NULL DEFAULT false;
GRANT UPDATE (urgent) ON outbox TO ti_service;
DROP INDEX outbox_unfinished_lanes;
CREATE INDEX outbox_unfinished_lanes ON outbox (lane, urgent DESC, id) WHERE finished_at IS NULL AND lane IS NOT NULL;
CREATE INDEX outbox_claimed ON outbox (claim_token) WHERE claim_token IS NOT NULL;
