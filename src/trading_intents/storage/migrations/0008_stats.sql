-- Stats: what each account did, counted in buckets of time.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- How far the account's log is counted. Apart from account_heads, whose rows every submit updates.
CREATE TABLE stats_heads (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    organization_id uuid NOT NULL,
    rolled_seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
ALTER TABLE stats_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE stats_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stats_heads TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stats_heads TO ti_worker USING (true);
GRANT SELECT ON stats_heads TO ti_service;
GRANT SELECT, INSERT, UPDATE ON stats_heads TO ti_worker;

-- Everything is counted in a bucket of each width, so that a window is read as a few wide buckets and the narrow ones at
-- its edge. `measure` and `key` say what: an action type, a symbol, a refusal's reason, a final status, a latency.
CREATE TABLE stats_buckets (
    account_id uuid NOT NULL,
    width_seconds bigint NOT NULL CHECK (width_seconds IN (60, 600, 3600, 21600, 86400, 604800)),
    start timestamptz NOT NULL,
    measure text NOT NULL,
    key text NOT NULL,
    organization_id uuid NOT NULL,
    amount numeric NOT NULL,
    PRIMARY KEY (account_id, width_seconds, start, measure, key)
) WITH (fillfactor = 80);
CREATE INDEX stats_buckets_by_age ON stats_buckets (width_seconds, start);
ALTER TABLE stats_buckets ENABLE ROW LEVEL SECURITY;
ALTER TABLE stats_buckets FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stats_buckets TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stats_buckets TO ti_worker USING (true);
GRANT SELECT, INSERT ON stats_buckets TO ti_service, ti_worker;
GRANT UPDATE (amount) ON stats_buckets TO ti_service, ti_worker;
GRANT DELETE ON stats_buckets TO ti_worker;
