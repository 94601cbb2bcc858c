-- What accounts were worth, at the end of spans in which that changed. Minutes are pruned, the others kept for ever.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE TABLE equity_points (
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    resolution text NOT NULL CHECK (resolution IN ('1m', '1h', '1d')),
    at timestamptz NOT NULL,
    equity numeric,
    cash numeric,
    realized_pnl numeric NOT NULL,
    unrealized_pnl numeric NOT NULL,
    PRIMARY KEY (account_id, resolution, at)
) WITH (fillfactor = 70);
CREATE INDEX equity_minutes_by_time ON equity_points (at) WHERE resolution = '1m';
ALTER TABLE equity_points ENABLE ROW LEVEL SECURITY;
ALTER TABLE equity_points FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON equity_points FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON equity_points TO ti_worker USING (true);
GRANT SELECT ON equity_points TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON equity_points TO ti_worker;
