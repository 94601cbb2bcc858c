-- What is counted waits here until a worker adds it to the buckets: a booking writes a row a count, not six contended ones.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE TABLE stats_entries (
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    at timestamptz NOT NULL,
    measure text NOT NULL,
    key text NOT NULL,
    amount numeric NOT NULL
);
CREATE INDEX stats_entries_by_account ON stats_entries (account_id);
ALTER TABLE stats_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE stats_entries FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stats_entries TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stats_entries TO ti_worker USING (true);
GRANT SELECT, INSERT ON stats_entries TO ti_service, ti_worker;
GRANT DELETE, UPDATE ON stats_entries TO ti_worker;
