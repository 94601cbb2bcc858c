-- The ledger: commands on their way to a broker, the facts seen of each order, and the trades and positions they make.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- A command from the moment its send is marked. Once sent_at is set it is never sent again, only looked up.
-- No foreign keys here and below: the order, which is locked while a row is written, has been there since its CREATE.
CREATE TABLE commands (
    account_id uuid NOT NULL,
    client_order_id text NOT NULL,
    organization_id uuid NOT NULL,
    order_id uuid NOT NULL,
    seq bigint NOT NULL,
    action_type text NOT NULL CHECK (action_type IN ('CREATE', 'REPLACE', 'CANCEL')),
    sent_at timestamptz,
    broker_order_id text,
    PRIMARY KEY (account_id, client_order_id)
);
CREATE INDEX commands_by_order ON commands (order_id);
-- Not unique: venues use their ids again.
CREATE INDEX commands_by_broker_order ON commands (account_id, broker_order_id) WHERE broker_order_id IS NOT NULL;
ALTER TABLE commands ENABLE ROW LEVEL SECURITY;
ALTER TABLE commands FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON commands FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON commands TO ti_worker USING (true);
GRANT SELECT ON commands TO ti_service;
GRANT SELECT, INSERT, UPDATE ON commands TO ti_worker;

-- What was seen of an order, each once. Without an order_id it is about one that we did not send.
CREATE TABLE facts (
    account_id uuid NOT NULL,
    key text NOT NULL,
    order_id uuid,
    organization_id uuid NOT NULL,
    arrival bigint GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL,
    client_order_id text,
    broker_order_id text,
    replaces text,
    exec_id text,
    quantity numeric,
    price numeric,
    fee numeric,
    cum_quantity numeric,
    average_price numeric,
    venue_time timestamptz,
    reason text,
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, key)
);
CREATE INDEX facts_by_order ON facts (order_id) WHERE order_id IS NOT NULL;
-- Told under the broker's id alone, before we knew that it is ours.
CREATE INDEX facts_astray ON facts (account_id, broker_order_id) WHERE order_id IS NULL AND client_order_id IS NULL;
ALTER TABLE facts ENABLE ROW LEVEL SECURITY;
ALTER TABLE facts FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON facts FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON facts TO ti_worker USING (true);
GRANT SELECT ON facts TO ti_service;
GRANT SELECT, INSERT ON facts TO ti_worker;
-- A fact never changes; only whose it is can turn out later.
GRANT UPDATE (order_id) ON facts TO ti_worker;

-- `seq` is that of the stream event that told of the trade last, `booking` its place among the symbol's trades for ever.
-- A busted trade, or a gap that real executions filled, stays with quantity zero.
CREATE TABLE trades (
    trade_id uuid PRIMARY KEY,
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    seq bigint NOT NULL,
    booking bigint GENERATED ALWAYS AS IDENTITY,
    order_id uuid NOT NULL,
    exec_id text NOT NULL,
    symbol text NOT NULL,
    side text NOT NULL CHECK (side IN ('BUY', 'SELL', 'SELL_SHORT')),
    quantity numeric NOT NULL CHECK (quantity >= 0),
    price numeric NOT NULL,
    fee numeric,
    cumulative_quantity numeric NOT NULL,
    leaves_quantity numeric NOT NULL,
    client_order_id text,
    command_seq bigint NOT NULL,
    client_reference_id text,
    flags text[] NOT NULL DEFAULT '{}',
    broker_sent_at timestamptz,
    received_at timestamptz NOT NULL,
    UNIQUE (order_id, exec_id)
);
CREATE INDEX trades_by_account ON trades (account_id, seq);
-- What a position is summed up from again.
CREATE INDEX trades_by_symbol ON trades (account_id, symbol, booking);
ALTER TABLE trades ENABLE ROW LEVEL SECURITY;
ALTER TABLE trades FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON trades FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON trades TO ti_worker USING (true);
GRANT SELECT ON trades TO ti_service;
GRANT SELECT, INSERT, UPDATE ON trades TO ti_worker;

-- At average cost, from our trades. broker_quantity is the broker's own count, told under broker_key at broker_sent_at and
-- moved on by the trades since.
CREATE TABLE positions (
    account_id uuid NOT NULL,
    symbol text NOT NULL,
    organization_id uuid NOT NULL,
    quantity numeric NOT NULL DEFAULT 0,
    open_cost numeric NOT NULL DEFAULT 0,
    realized_pnl numeric NOT NULL DEFAULT 0,
    value_bought numeric NOT NULL DEFAULT 0,
    value_sold numeric NOT NULL DEFAULT 0,
    fees numeric NOT NULL DEFAULT 0,
    day date,
    day_pnl numeric NOT NULL DEFAULT 0,
    broker_quantity numeric,
    broker_key text,
    broker_sent_at timestamptz,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, symbol)
) WITH (fillfactor = 50);
ALTER TABLE positions ENABLE ROW LEVEL SECURITY;
ALTER TABLE positions FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON positions FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON positions TO ti_worker USING (true);
GRANT SELECT ON positions TO ti_service;
GRANT SELECT, INSERT, UPDATE ON positions TO ti_worker;

-- Finished orders are retained for an hour; the others are looked up while what the broker made of them is not known.
ALTER TABLE orders ADD COLUMN finished_at timestamptz;
ALTER TABLE orders ADD COLUMN lookup_due_at timestamptz;
ALTER TABLE orders ADD COLUMN lookups bigint NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN absent_at timestamptz;
-- No order was ever finished before this file, so these indexes begin empty or small.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX orders_finished ON orders (account_id, finished_at) WHERE finished_at IS NOT NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX orders_by_reference ON orders (account_id, client_reference_id, create_seq)
WHERE client_reference_id IS NOT NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX orders_to_look_up ON orders (account_id, lookup_due_at) WHERE lookup_due_at IS NOT NULL;
