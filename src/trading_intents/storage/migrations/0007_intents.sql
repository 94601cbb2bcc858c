-- Intents: the account's head, the append-only log of actions, the orders they make, and what was refused.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- One row per account. Who appends to the account's log holds it, so seq is dense and commits in order.
CREATE TABLE account_heads (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    organization_id uuid NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    hash text NOT NULL DEFAULT repeat('0', 64)
);
ALTER TABLE account_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE account_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON account_heads TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON account_heads TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON account_heads TO ti_service, ti_worker;

-- `record` is the canonical JSON that was hashed: reads serve it as it is, and a check needs no rebuilding.
-- No foreign keys: the head that is held while a row is added has them.
CREATE TABLE actions (
    account_id uuid NOT NULL,
    seq bigint NOT NULL CHECK (seq > 0),
    intent_id uuid NOT NULL,
    action_id uuid NOT NULL DEFAULT gen_random_uuid(),
    organization_id uuid NOT NULL,
    action_type text NOT NULL CHECK (action_type IN ('CREATE', 'REPLACE', 'CANCEL')),
    idempotency_key text CHECK (char_length(idempotency_key) BETWEEN 1 AND 128),
    body_digest bytea CHECK ((body_digest IS NULL) = (idempotency_key IS NULL)),
    created_at timestamptz NOT NULL,
    record text NOT NULL,
    hash text NOT NULL CHECK (char_length(hash) = 64),
    PRIMARY KEY (account_id, seq)
);
CREATE UNIQUE INDEX actions_by_idempotency_key ON actions (account_id, idempotency_key)
WHERE idempotency_key IS NOT NULL;
CREATE INDEX actions_by_intent ON actions (intent_id, seq);
ALTER TABLE actions ENABLE ROW LEVEL SECURITY;
ALTER TABLE actions FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON actions TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON actions TO ti_worker USING (true);
GRANT SELECT, INSERT ON actions TO ti_service, ti_worker;

-- Behind the missing rights: not even the owner changes history by mistake.
CREATE FUNCTION refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'actions are append-only';
END
$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON actions FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON actions FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- One order per intent; its id is the intent's. The fields show the last version that the broker confirmed.
CREATE TABLE orders (
    order_id uuid PRIMARY KEY,
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    environment text NOT NULL,
    broker text NOT NULL,
    create_seq bigint NOT NULL,
    command_seq bigint NOT NULL,
    symbol text NOT NULL,
    order_status text NOT NULL DEFAULT 'PENDING_NEW' CHECK (
        order_status IN (
            'PENDING_NEW', 'NEW', 'PARTIALLY_FILLED', 'PENDING_REPLACE', 'PENDING_CANCEL', 'UNKNOWN',
            'FILLED', 'CANCELLED', 'EXPIRED', 'REJECTED'
        )
    ),
    order_type text NOT NULL CHECK (order_type IN ('MARKET', 'LIMIT', 'STOP', 'STOP_LIMIT')),
    order_side text NOT NULL CHECK (order_side IN ('BUY', 'SELL', 'SELL_SHORT')),
    time_in_force text NOT NULL,
    route_strategy text NOT NULL,
    quantity numeric NOT NULL CHECK (quantity > 0),
    limit_price numeric CHECK (limit_price > 0),
    stop_price numeric CHECK (stop_price > 0),
    filled_quantity numeric NOT NULL DEFAULT 0 CHECK (filled_quantity >= 0),
    average_price numeric,
    external_order_id text,
    client_reference_id text,
    reason text,
    flags text[] NOT NULL DEFAULT '{}',
    pending_replace_seq bigint,
    cancel_requested boolean NOT NULL DEFAULT false,
    broker_sent_at timestamptz,
    received_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    CHECK ((limit_price IS NOT NULL) = (order_type IN ('LIMIT', 'STOP_LIMIT'))),
    CHECK ((stop_price IS NOT NULL) = (order_type IN ('STOP', 'STOP_LIMIT')))
);
CREATE UNIQUE INDEX orders_by_account ON orders (account_id, create_seq);
CREATE INDEX orders_open ON orders (account_id)
WHERE order_status NOT IN ('FILLED', 'CANCELLED', 'EXPIRED', 'REJECTED');
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
ALTER TABLE orders FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON orders TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON orders TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON orders TO ti_service, ti_worker;

-- What the controls refused, kept for thirty days.
CREATE TABLE refusals (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    account_id uuid NOT NULL,
    action_type text NOT NULL,
    symbol text NOT NULL,
    reasons text[] NOT NULL,
    principal_id text NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX refusals_by_account ON refusals (account_id, created_at);
CREATE INDEX refusals_by_age ON refusals (created_at);
ALTER TABLE refusals ENABLE ROW LEVEL SECURITY;
ALTER TABLE refusals FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON refusals TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON refusals TO ti_worker USING (true);
GRANT SELECT, INSERT ON refusals TO ti_service;
GRANT SELECT, DELETE ON refusals TO ti_worker;

-- A CANCEL makes its intent's waiting rows due.
GRANT UPDATE (due_at) ON outbox TO ti_service;
