-- Limits of organizations, accounts and symbols, and the state by which orders are judged, of accounts that need it.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation
-- `owner_id` is the organization or the account, `symbol` empty but for a symbol's limits. `rules` is read as one value.
CREATE TABLE trading_limits (
    owner_id uuid NOT NULL,
    symbol text COLLATE "C" NOT NULL DEFAULT '' CHECK (symbol = '' OR symbol ~ '^[A-Z0-9][A-Z0-9./:_-]{0,31}$'),
    organization_id uuid NOT NULL REFERENCES organizations,
    rules jsonb NOT NULL CHECK (jsonb_typeof(rules) = 'object'),
    needs_tracking boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    PRIMARY KEY (owner_id, symbol)
);
ALTER TABLE trading_limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE trading_limits FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON trading_limits TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON trading_limits FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON trading_limits TO ti_service;
GRANT SELECT ON trading_limits TO ti_worker;
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON trading_limits
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

-- A tracked account has a limit that needs its open orders and recent orders: they are counted as they change. An order
-- is counted while it is open and its account is tracked.
ALTER TABLE account_heads ADD COLUMN tracked boolean NOT NULL DEFAULT false;
CREATE INDEX account_heads_tracked ON account_heads (account_id) WHERE tracked;
ALTER TABLE orders ADD COLUMN counted boolean NOT NULL DEFAULT false;

-- What is open of a tracked account's symbol: orders, and their unfilled quantities by side. Of two versions of an order
-- the larger counts. The row without a symbol has the account's number of open orders.
CREATE TABLE exposures (
    account_id uuid NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    organization_id uuid NOT NULL,
    open_orders bigint NOT NULL,
    open_buy numeric NOT NULL,
    open_sell numeric NOT NULL,
    PRIMARY KEY (account_id, symbol)
) WITH (fillfactor = 50);
ALTER TABLE exposures ENABLE ROW LEVEL SECURITY;
ALTER TABLE exposures FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON exposures TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON exposures TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON exposures TO ti_service, ti_worker;
GRANT DELETE ON exposures TO ti_worker;

-- How many CREATEs and REPLACEs of a tracked account were accepted in a second.
CREATE TABLE order_rates (
    account_id uuid NOT NULL,
    second timestamptz NOT NULL,
    organization_id uuid NOT NULL,
    orders bigint NOT NULL,
    PRIMARY KEY (account_id, second)
) WITH (fillfactor = 50);
CREATE INDEX order_rates_by_age ON order_rates (second);
ALTER TABLE order_rates ENABLE ROW LEVEL SECURITY;
ALTER TABLE order_rates FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON order_rates TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON order_rates TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON order_rates TO ti_service, ti_worker;
GRANT DELETE ON order_rates TO ti_worker;

-- When a tracked account's CREATE of these terms was last accepted: symbol, side, kind, quantity and prices.
CREATE TABLE recent_creates (
    account_id uuid NOT NULL,
    terms text COLLATE "C" NOT NULL,
    organization_id uuid NOT NULL,
    accepted_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, terms)
) WITH (fillfactor = 50);
CREATE INDEX recent_creates_by_age ON recent_creates (accepted_at);
ALTER TABLE recent_creates ENABLE ROW LEVEL SECURITY;
ALTER TABLE recent_creates FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON recent_creates TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON recent_creates TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON recent_creates TO ti_service, ti_worker;
GRANT DELETE ON recent_creates TO ti_worker;
