-- What API keys with limits have used: orders of the last minute by second, and the day's notional, in UTC.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE TABLE key_budgets (
    key_id uuid PRIMARY KEY REFERENCES api_keys ON DELETE CASCADE,
    organization_id uuid NOT NULL REFERENCES organizations,
    day date NOT NULL,
    daily_notional numeric NOT NULL DEFAULT 0 CHECK (daily_notional >= 0),
    seconds jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
ALTER TABLE key_budgets ENABLE ROW LEVEL SECURITY;
ALTER TABLE key_budgets FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON key_budgets TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON key_budgets FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON key_budgets TO ti_service;
GRANT SELECT ON key_budgets TO ti_worker;
