-- Leases: which worker works which account, and which commands' answers were lost.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- A worker's process, while it lives: with one row to renew, thousands of leases cost no more than one. What it leased is
-- free once this has expired; a worker that finds that of itself comes back as another.
CREATE TABLE workers (
    id uuid PRIMARY KEY,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);
GRANT SELECT ON workers TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON workers TO ti_worker;

-- Who holds an account's lease is the one to claim its intents and to have a link to its broker. `token` grows whenever it
-- changes hands. The broker's executions are recorded up to `seen_at`; `generation` is the link's that the holder knows.
CREATE TABLE leases (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    organization_id uuid NOT NULL,
    worker_id uuid,
    token bigint NOT NULL DEFAULT 1,
    generation bigint NOT NULL DEFAULT 0,
    seen_at timestamptz
);
CREATE INDEX leases_by_worker ON leases (worker_id);
ALTER TABLE leases ENABLE ROW LEVEL SECURITY;
ALTER TABLE leases FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON leases FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON leases TO ti_worker USING (true);
GRANT SELECT ON leases TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON leases TO ti_worker;

-- When a command's answer was lost; it is looked up until it is known, or proved never to have arrived.
ALTER TABLE commands ADD COLUMN unclear_at timestamptz;

-- Where orders grow stale while they work: looked at every second.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX symbol_times_stale ON symbol_times (account_id) WHERE stale_order_millis IS NOT NULL;

-- Orders with a command that the broker has not answered.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX orders_pending ON orders (account_id) WHERE cancel_requested OR pending_replace_seq IS NOT NULL;
