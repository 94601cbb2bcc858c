-- Halts, their progress by account, and orders that close a position, which pass a halt.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation
-- Halts of an organization (no account_id) or of an account, kept for ever: who stopped trading, why, and who let it go
-- on. The totals are those of its parts. No foreign keys: a halt may begin in a transaction that holds orders, and
-- accounts are locked before them.
CREATE TABLE halts (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    account_id uuid,
    scope_id uuid NOT NULL GENERATED ALWAYS AS (coalesce(account_id, organization_id)) STORED,
    reason text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500),
    cancel_orders boolean NOT NULL,
    close_positions boolean NOT NULL,
    state text NOT NULL CHECK (state IN ('cancelling', 'closing', 'done', 'resumed')),
    orders bigint NOT NULL DEFAULT 0,
    orders_done bigint NOT NULL DEFAULT 0,
    positions bigint NOT NULL DEFAULT 0,
    positions_done bigint NOT NULL DEFAULT 0,
    waiting jsonb NOT NULL DEFAULT '[]',
    principal_type text NOT NULL CHECK (principal_type IN ('API_KEY', 'USER', 'SYSTEM')),
    principal_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    resumed_at timestamptz,
    resumed_principal_type text,
    resumed_principal_id text,
    CHECK (cancel_orders OR NOT close_positions),
    CHECK ((state = 'resumed') = (resumed_at IS NOT NULL))
);
-- One that stands in a scope, an organization or an account; every submit and every send asks for it.
CREATE UNIQUE INDEX halts_standing ON halts (scope_id) WHERE resumed_at IS NULL;
CREATE INDEX halts_resumed ON halts (scope_id, resumed_at) WHERE resumed_at IS NOT NULL;
CREATE INDEX halts_by_scope ON halts (scope_id, created_at);
CREATE INDEX halts_unfinished ON halts (organization_id, id) WHERE resumed_at IS NULL AND state <> 'done';
ALTER TABLE halts ENABLE ROW LEVEL SECURITY;
ALTER TABLE halts FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON halts TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON halts TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON halts TO ti_service, ti_worker;
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT ON halts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_resumed AFTER UPDATE ON halts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (OLD.resumed_at IS DISTINCT FROM NEW.resumed_at)
EXECUTE FUNCTION count_rule_change();

-- A halt's progress in one account, written by the worker that has its lease, apart from the halt: thousands of accounts
-- never wait for one row. `base_seq` is the account's last seq when the worker looked first, `seen_seq` when it looked
-- last; `symbols` are those of which something was to be closed.
CREATE TABLE halt_parts (
    halt_id uuid NOT NULL,
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    state text NOT NULL CHECK (state IN ('cancelling', 'closing', 'done')),
    base_seq bigint NOT NULL,
    seen_seq bigint NOT NULL,
    orders bigint NOT NULL,
    orders_done bigint NOT NULL,
    symbols text[] NOT NULL,
    positions_done bigint NOT NULL,
    waiting jsonb NOT NULL,
    PRIMARY KEY (halt_id, account_id)
) WITH (fillfactor = 50);
ALTER TABLE halt_parts ENABLE ROW LEVEL SECURITY;
ALTER TABLE halt_parts FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON halt_parts TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON halt_parts TO ti_worker USING (true);
GRANT SELECT, UPDATE ON halt_parts TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON halt_parts TO ti_worker;

-- Made to close a position: by a caller, or by a halt.
ALTER TABLE orders ADD COLUMN closes boolean NOT NULL DEFAULT false;
