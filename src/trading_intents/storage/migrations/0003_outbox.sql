-- The transactional outbox: one table, one mechanism, three queues.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- No foreign keys: a row lives for hours, the row it speaks of is written in the same transaction and has them.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL CHECK (queue IN ('accounts', 'intents', 'users')),
    event_type text NOT NULL CHECK (
        queue <> 'accounts' OR event_type IN (
            'account.created', 'account.updated', 'account.deleted',
            'credential.created', 'credential.updated', 'credential.deleted'
        )
    ),
    organization_id uuid NOT NULL,
    order_key uuid NOT NULL,
    lane uuid CHECK ((lane IS NOT NULL) = (queue = 'intents')),
    payload jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'completed', 'failed')),
    attempts bigint NOT NULL DEFAULT 0 CHECK (attempts BETWEEN 0 AND 1000),
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    claim_token uuid,
    finished_at timestamptz,
    last_error text CHECK (char_length(last_error) <= 500),
    CONSTRAINT outbox_claim_is_processing CHECK (
        (status = 'processing') = (claimed_at IS NOT NULL) AND (claimed_at IS NULL) = (claim_token IS NULL)
    ),
    CONSTRAINT outbox_end_is_final CHECK ((status IN ('completed', 'failed')) = (finished_at IS NOT NULL))
);
-- Only unfinished rows are searched on the hot path, so finished ones cost a claim nothing.
CREATE INDEX outbox_unfinished ON outbox (queue, id) WHERE status IN ('pending', 'processing') AND lane IS NULL;
CREATE INDEX outbox_unfinished_lanes ON outbox (lane, id)
WHERE status IN ('pending', 'processing') AND lane IS NOT NULL;
CREATE INDEX outbox_order ON outbox (order_key, queue, id) WHERE status IN ('pending', 'processing');
CREATE INDEX outbox_completed ON outbox (queue, finished_at) WHERE status = 'completed';
CREATE INDEX outbox_failed ON outbox (queue, id) WHERE status = 'failed';
-- All that the health report reads: it visits no row of another queue.
CREATE INDEX outbox_accounts_health ON outbox (status, event_type, created_at, attempts, claimed_at)
WHERE queue = 'accounts';

ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE outbox FORCE ROW LEVEL SECURITY;
GRANT SELECT, INSERT ON outbox TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox TO ti_worker;
CREATE POLICY service ON outbox TO ti_service
USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker_reads ON outbox FOR SELECT TO ti_worker USING (true);
CREATE POLICY worker_puts ON outbox FOR INSERT TO ti_worker WITH CHECK (true);
-- A final state is never left, whatever a statement says; only finished rows are removed.
CREATE POLICY worker_moves ON outbox FOR UPDATE TO ti_worker USING (finished_at IS NULL) WITH CHECK (true);
CREATE POLICY worker_removes ON outbox FOR DELETE TO ti_worker USING (finished_at IS NOT NULL);
-- Forced row-level security holds for the owner too, as which the health report runs.
CREATE POLICY owner_reports ON outbox FOR SELECT TO ti_owner USING (queue = 'accounts');

-- The whole accounts queue across organizations, as counts and times only.
CREATE FUNCTION accounts_outbox_health() RETURNS TABLE (
    status text,
    event_type text,
    count bigint,
    oldest_created_at timestamptz,
    max_attempts bigint,
    oldest_claimed_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT o.status, o.event_type, count(*), min(o.created_at), max(o.attempts), min(o.claimed_at)
    FROM outbox o
    WHERE o.queue = 'accounts'
    GROUP BY o.status, o.event_type
    ORDER BY o.status, o.event_type;
END;
GRANT EXECUTE ON FUNCTION accounts_outbox_health() TO ti_service;

-- Failed rows that an operator settled: what they were, and who did what, when and why.
CREATE TABLE outbox_archive (
    id bigint PRIMARY KEY,
    queue text NOT NULL,
    event_type text NOT NULL,
    organization_id uuid NOT NULL,
    order_key uuid NOT NULL,
    lane uuid,
    payload jsonb NOT NULL,
    attempts bigint NOT NULL,
    created_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL,
    last_error text,
    action text NOT NULL CHECK (action IN ('retried', 'dropped')),
    retried_as bigint CHECK ((retried_as IS NOT NULL) = (action = 'retried')),
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    archived_by text NOT NULL,
    reason text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500)
);
ALTER TABLE outbox_archive ENABLE ROW LEVEL SECURITY;
ALTER TABLE outbox_archive FORCE ROW LEVEL SECURITY;
GRANT SELECT, INSERT ON outbox_archive TO ti_worker;
CREATE POLICY worker_reads ON outbox_archive FOR SELECT TO ti_worker USING (true);
CREATE POLICY worker_archives ON outbox_archive FOR INSERT TO ti_worker WITH CHECK (true);
