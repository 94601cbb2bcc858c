-- The paper broker's own tables: its accounts, orders, events and prices. Nothing else reads them, but for the quotes
-- that an organization posts.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- Totals over all symbols, and the last numbers given out. Whoever works an account holds its row until the commit, so
-- orders, events and commands are numbered as they commit.
CREATE TABLE paper_accounts (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    cash numeric NOT NULL,
    reserved numeric NOT NULL DEFAULT 0,
    short_value numeric NOT NULL DEFAULT 0,
    orders bigint NOT NULL DEFAULT 0,
    events bigint NOT NULL DEFAULT 0,
    places bigint NOT NULL DEFAULT 0,
    commands bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
ALTER TABLE paper_accounts ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_accounts FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_accounts TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON paper_accounts TO ti_worker;

-- A symbol in an account: the position, and how much of the sizes of the quote that was worked last is used.
CREATE TABLE paper_holdings (
    account_id uuid NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    position numeric NOT NULL,
    short_value numeric NOT NULL,
    source text CHECK (source IN ('walk', 'posted')),
    number bigint NOT NULL,
    bid_taken numeric NOT NULL,
    ask_taken numeric NOT NULL,
    PRIMARY KEY (account_id, symbol)
);
ALTER TABLE paper_holdings ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_holdings FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_holdings TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON paper_holdings TO ti_worker;

CREATE TABLE paper_orders (
    account_id uuid NOT NULL,
    number bigint NOT NULL,
    broker_order_id text NOT NULL,
    client_order_id text NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    side text NOT NULL,
    kind text NOT NULL,
    quantity numeric NOT NULL,
    limit_price numeric,
    stop_price numeric,
    time_in_force text NOT NULL,
    place bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('WORKING', 'FILLED', 'CANCELLED', 'EXPIRED', 'REJECTED')),
    triggered boolean NOT NULL,
    filled numeric NOT NULL,
    paid numeric NOT NULL,
    covers numeric NOT NULL,
    reserve_price numeric NOT NULL,
    accepted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, number)
);
CREATE INDEX paper_orders_working ON paper_orders (account_id, symbol) WHERE status = 'WORKING';
CREATE INDEX paper_orders_by_broker_id ON paper_orders (account_id, broker_order_id);
ALTER TABLE paper_orders ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_orders FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_orders TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON paper_orders TO ti_worker;

-- What the broker says, in the order in which it happened. `number` is the order's.
CREATE TABLE paper_events (
    account_id uuid NOT NULL,
    seq bigint NOT NULL,
    number bigint,
    kind text NOT NULL,
    client_order_id text,
    broker_order_id text,
    replaces text,
    exec_id text,
    symbol text,
    side text,
    quantity numeric,
    price numeric,
    fee numeric,
    cum_quantity numeric,
    leaves_quantity numeric,
    average_price numeric,
    broker_status text,
    venue_time timestamptz NOT NULL,
    reason text,
    raw text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account_id, seq)
);
CREATE INDEX paper_events_by_order ON paper_events (account_id, number);
CREATE INDEX paper_events_by_time ON paper_events (account_id, recorded_at);
ALTER TABLE paper_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_events FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_events TO ti_worker USING (true);
GRANT SELECT, INSERT ON paper_events TO ti_worker;

-- Every command that arrived, once for each arrival. `number` is the order that it made or meant.
CREATE TABLE paper_journal (
    account_id uuid NOT NULL,
    seq bigint NOT NULL,
    command text NOT NULL CHECK (command IN ('SUBMIT', 'REPLACE', 'CANCEL')),
    client_order_id text NOT NULL,
    number bigint,
    duplicate boolean NOT NULL,
    ticket text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (account_id, seq)
);
CREATE UNIQUE INDEX paper_journal_by_client_id ON paper_journal (account_id, client_order_id) WHERE NOT duplicate;
ALTER TABLE paper_journal ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_journal FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_journal TO ti_worker USING (true);
GRANT SELECT, INSERT ON paper_journal TO ti_worker;

-- What shall go wrong, on accounts of tests: with this chance, for so many more commands (NULL: for ever).
CREATE TABLE paper_faults (
    account_id uuid NOT NULL,
    kind text NOT NULL CHECK (
        kind IN ('reject', 'lose', 'drop_answer', 'duplicate', 'delay', 'reorder', 'overfill', 'disconnect')
    ),
    command text CHECK (command IN ('SUBMIT', 'REPLACE', 'CANCEL')),
    chance numeric NOT NULL DEFAULT 1 CHECK (chance > 0 AND chance <= 1),
    remaining bigint CHECK (remaining >= 0),
    millis bigint NOT NULL DEFAULT 0 CHECK (millis BETWEEN 0 AND 60000),
    PRIMARY KEY (account_id, kind)
);
ALTER TABLE paper_faults ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_faults FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_faults TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON paper_faults TO ti_worker;

-- Symbols that an organization prices itself, with the last quote's number; who posts holds the row until the commit.
CREATE TABLE paper_symbols (
    organization_id uuid NOT NULL REFERENCES organizations,
    symbol text COLLATE "C" NOT NULL CHECK (symbol ~ '^[A-Z0-9][A-Z0-9./:_-]{0,31}$'),
    number bigint NOT NULL,
    PRIMARY KEY (organization_id, symbol)
) WITH (fillfactor = 50);
ALTER TABLE paper_symbols ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_symbols FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON paper_symbols TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON paper_symbols FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON paper_symbols TO ti_service;
GRANT SELECT ON paper_symbols TO ti_worker;

CREATE TABLE paper_quotes (
    organization_id uuid NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    bid numeric NOT NULL CHECK (bid > 0),
    ask numeric NOT NULL CHECK (ask >= bid),
    bid_size numeric NOT NULL CHECK (bid_size > 0),
    ask_size numeric NOT NULL CHECK (ask_size > 0),
    last numeric CHECK (last > 0),
    last_size numeric CHECK (last_size > 0),
    posted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, symbol, number),
    CHECK (last IS NOT NULL OR last_size IS NULL)
);
ALTER TABLE paper_quotes ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_quotes FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON paper_quotes TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON paper_quotes FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, DELETE ON paper_quotes TO ti_service;
GRANT SELECT ON paper_quotes TO ti_worker;
