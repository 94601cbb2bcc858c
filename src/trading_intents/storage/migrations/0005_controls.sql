-- Controls: what stops an organization, an account or a symbol from trading.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

CREATE TABLE organization_controls (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    manually_disabled boolean NOT NULL,
    manual_reason text CHECK (char_length(manual_reason) BETWEEN 1 AND 500),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0)
);
ALTER TABLE organization_controls ENABLE ROW LEVEL SECURITY;
ALTER TABLE organization_controls FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON organization_controls TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON organization_controls FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON organization_controls TO ti_service;
GRANT SELECT ON organization_controls TO ti_worker;

CREATE TABLE account_controls (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    organization_id uuid NOT NULL REFERENCES organizations,
    manually_disabled boolean NOT NULL,
    manual_reason text CHECK (char_length(manual_reason) BETWEEN 1 AND 500),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0)
);
ALTER TABLE account_controls ENABLE ROW LEVEL SECURITY;
ALTER TABLE account_controls FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON account_controls TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON account_controls FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON account_controls TO ti_service;
GRANT SELECT ON account_controls TO ti_worker;

-- The manual and the time control of a symbol are two records with two versions. A symbol has one spelling, upper
-- case, and the order of its bytes.
CREATE TABLE symbol_controls (
    account_id uuid NOT NULL REFERENCES accounts,
    symbol text COLLATE "C" NOT NULL CHECK (symbol ~ '^[A-Z0-9][A-Z0-9./:_-]{0,31}$'),
    organization_id uuid NOT NULL REFERENCES organizations,
    manually_disabled boolean NOT NULL,
    manual_reason text CHECK (char_length(manual_reason) BETWEEN 1 AND 500),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    PRIMARY KEY (account_id, symbol)
);
ALTER TABLE symbol_controls ENABLE ROW LEVEL SECURITY;
ALTER TABLE symbol_controls FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON symbol_controls TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON symbol_controls FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON symbol_controls TO ti_service;
GRANT SELECT ON symbol_controls TO ti_worker;

CREATE TABLE symbol_times (
    account_id uuid NOT NULL REFERENCES accounts,
    symbol text COLLATE "C" NOT NULL CHECK (symbol ~ '^[A-Z0-9][A-Z0-9./:_-]{0,31}$'),
    organization_id uuid NOT NULL REFERENCES organizations,
    trading_start time(0) CHECK (trading_start < '24:00:00'),
    trading_end time(0) CHECK (trading_end < '24:00:00'),
    stale_order_millis bigint CHECK (stale_order_millis BETWEEN 1 AND 604800000),
    timezone text CHECK (char_length(timezone) BETWEEN 1 AND 64),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    PRIMARY KEY (account_id, symbol),
    CHECK (trading_start <> trading_end)
);
ALTER TABLE symbol_times ENABLE ROW LEVEL SECURITY;
ALTER TABLE symbol_times FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON symbol_times TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON symbol_times FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON symbol_times TO ti_service;
GRANT SELECT ON symbol_times TO ti_worker;
