-- What an account's broker last told of its money; an account without a row was told nothing of.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE TABLE balances (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    currency text,
    cash numeric,
    buying_power numeric,
    equity numeric,
    as_of timestamptz NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE balances ENABLE ROW LEVEL SECURITY;
ALTER TABLE balances FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON balances FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON balances TO ti_worker USING (true);
GRANT SELECT ON balances TO ti_service;
GRANT SELECT, INSERT ON balances TO ti_worker;
GRANT UPDATE (currency, cash, buying_power, equity, as_of) ON balances TO ti_worker;
