-- What an account's result is counted from for its daily-loss limit.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation
-- `result` is realized and unrealized when the day began in `timezone`, or when it was first judged that day. `halted`:
-- the loss was reached, and the account halted for it, which happens once for a day and limit.
CREATE TABLE daily_baselines (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    day date NOT NULL,
    timezone text NOT NULL,
    result numeric NOT NULL,
    halted boolean NOT NULL DEFAULT false,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
ALTER TABLE daily_baselines ENABLE ROW LEVEL SECURITY;
ALTER TABLE daily_baselines FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON daily_baselines TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON daily_baselines TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON daily_baselines TO ti_service;
GRANT SELECT, INSERT, UPDATE ON daily_baselines TO ti_worker;

-- Accounts with a daily-loss limit: looked at every second.
CREATE INDEX trading_limits_daily_loss ON trading_limits (owner_id) WHERE rules ? 'max_daily_loss';
