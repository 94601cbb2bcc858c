-- The FIX sessions' own tables: the numbers of each account's session, and its messages. Nothing else reads them.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- `token` is that of the lease that has the session: nobody else writes. `epoch` counts the resets of the numbers.
CREATE TABLE fix_sessions (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    broker text NOT NULL,
    begin_string text NOT NULL,
    sender text NOT NULL,
    target text NOT NULL,
    token bigint NOT NULL,
    epoch bigint NOT NULL DEFAULT 1,
    next_in bigint NOT NULL DEFAULT 1,
    next_out bigint NOT NULL DEFAULT 1,
    reset_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (broker, sender, target)
) WITH (fillfactor = 50);
ALTER TABLE fix_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE fix_sessions FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON fix_sessions TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON fix_sessions TO ti_worker;

-- Messages that were sent or will be, each stored before it is written to the socket. One that has a `client_order_id` is
-- a command: it is sent again when the venue asks for it, until it is answered or `not_after` has come; then `skipped_at`
-- says that it was left out.
CREATE TABLE fix_out (
    account_id uuid NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    type text NOT NULL,
    raw bytea NOT NULL,
    client_order_id text,
    is_answered boolean NOT NULL,
    not_after timestamptz,
    skipped_at timestamptz,
    PRIMARY KEY (account_id, epoch, number)
);
CREATE INDEX fix_out_by_client_order_id ON fix_out (client_order_id, account_id) WHERE client_order_id IS NOT NULL;
CREATE INDEX fix_out_unanswered ON fix_out (account_id, at) WHERE NOT is_answered;
CREATE INDEX fix_out_skipped ON fix_out (account_id, skipped_at) WHERE skipped_at IS NOT NULL;
ALTER TABLE fix_out ENABLE ROW LEVEL SECURITY;
ALTER TABLE fix_out FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON fix_out TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON fix_out TO ti_worker;

-- Messages that came, as they came. `is_open`: the last report of an order that works. `refused_number`: it rejects this
-- message of ours.
CREATE TABLE fix_in (
    account_id uuid NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    type text NOT NULL,
    raw bytea NOT NULL,
    order_id text,
    is_open boolean NOT NULL,
    refused_number bigint,
    PRIMARY KEY (account_id, epoch, number)
);
CREATE INDEX fix_in_by_time ON fix_in (account_id, at, epoch, number);
CREATE INDEX fix_in_open ON fix_in (account_id, order_id) WHERE is_open;
ALTER TABLE fix_in ENABLE ROW LEVEL SECURITY;
ALTER TABLE fix_in FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON fix_in TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON fix_in TO ti_worker;
