-- The whole schema, by feature and table. Until 0.1.0 is tagged this file is edited; from then on it
-- never changes again, and a change is the next file.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
-- squawk-ignore-file ban-create-domain-with-constraint

-- Nobody gets a right by being PUBLIC: each object grants what its roles need.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC;

CREATE TABLE schema_migrations (
    version bigint PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON schema_migrations TO ti_service, ti_worker;

-- The organizations whose rows a transaction may see; none when it did not say. The one pattern for
-- tenant tables:
--
--   ALTER TABLE things ENABLE ROW LEVEL SECURITY;
--   ALTER TABLE things FORCE ROW LEVEL SECURITY;
--   CREATE POLICY service ON things TO ti_service
--       USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
--
-- The SELECT makes it a value computed once a statement, which an index can use; the cast keeps it
-- an array.
CREATE FUNCTION current_organizations() RETURNS uuid[]
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(
    nullif(current_setting('trading_intents.organizations', true), '')::uuid[], '{}'::uuid[]
);
GRANT EXECUTE ON FUNCTION current_organizations() TO ti_service, ti_worker;

-- A column of texts that was sent as one: values between unit separators, NULL as a record
-- separator. It is never empty: what looks so is one empty text. Not STRICT, so that the server
-- puts it in place of its call: called, it costs more.
CREATE FUNCTION from_column(joined text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN joined = '' THEN ARRAY[''] ELSE string_to_array(joined, chr(31), chr(30)) END;
GRANT EXECUTE ON FUNCTION from_column(text) TO ti_service, ti_worker;

-- Rules about one column: a CHECK is read from its text again by every statement, a domain once a
-- connection.
CREATE DOMAIN seq_number AS bigint CONSTRAINT valid CHECK (VALUE > 0);
CREATE DOMAIN message_count AS smallint CONSTRAINT valid CHECK (VALUE BETWEEN 1 AND 100);
CREATE DOMAIN amount AS numeric CONSTRAINT valid CHECK (VALUE > 0);
CREATE DOMAIN environment AS text CONSTRAINT valid CHECK (VALUE IN ('paper', 'live'));
CREATE DOMAIN action_type AS text CONSTRAINT valid CHECK (VALUE IN ('CREATE', 'REPLACE', 'CANCEL'));
CREATE DOMAIN idempotency_key AS text CONSTRAINT valid CHECK (char_length(VALUE) BETWEEN 1 AND 128);
CREATE DOMAIN chain_hash AS text CONSTRAINT valid CHECK (char_length(VALUE) = 64);
CREATE DOMAIN order_status AS text CONSTRAINT valid CHECK (
    VALUE IN (
        'PENDING_NEW', 'NEW', 'PARTIALLY_FILLED', 'PENDING_REPLACE', 'PENDING_CANCEL', 'UNKNOWN',
        'FILLED', 'CANCELLED', 'EXPIRED', 'REJECTED'
    )
);
CREATE DOMAIN order_type AS text CONSTRAINT valid CHECK (
    VALUE IN ('MARKET', 'LIMIT', 'STOP', 'STOP_LIMIT', 'TRAILING_STOP')
);
CREATE DOMAIN order_side AS text CONSTRAINT valid CHECK (VALUE IN ('BUY', 'SELL', 'SELL_SHORT'));
CREATE DOMAIN filled_amount AS numeric CONSTRAINT valid CHECK (VALUE >= 0);
-- squawk-ignore prefer-bigint-over-smallint

-- What an organization's intents are decided by has a version: while it is the same, what was read
-- before still holds. No foreign key: it would lock the organization, last of all, which others
-- lock first.
CREATE TABLE rule_versions (
    organization_id uuid PRIMARY KEY,
    version bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50);
ALTER TABLE rule_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE rule_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON rule_versions FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON rule_versions FOR SELECT TO ti_worker USING (true);
CREATE POLICY owner ON rule_versions TO ti_owner USING (true);
GRANT SELECT ON rule_versions TO ti_service, ti_worker;

CREATE FUNCTION count_rule_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed uuid;
BEGIN
    IF TG_TABLE_NAME = 'organizations' THEN
        changed := NEW.id;
    ELSIF TG_OP = 'DELETE' THEN
        changed := OLD.organization_id;
    ELSE
        changed := NEW.organization_id;
    END IF;
    INSERT INTO public.rule_versions AS r (organization_id) VALUES (changed)
    ON CONFLICT (organization_id) DO UPDATE SET version = r.version + 1
    WHERE r.xmin <> pg_current_xact_id()::xid;  -- once a transaction, whatever it changes
    RETURN NULL;
END
$$;

-- Identity: a caller is looked up before the organization is known, so its tables have no tenant
-- policy, but for the keys, which functions look up.

CREATE TABLE organizations (
    id uuid PRIMARY KEY,
    provider text NOT NULL,
    external_id text NOT NULL,
    name text NOT NULL,
    entitlements text[] NOT NULL DEFAULT '{}' CHECK (
        entitlements <@ ARRAY['controls_premium', 'trading_live']
    ),
    disabled boolean NOT NULL DEFAULT false,
    fingerprint_key uuid NOT NULL DEFAULT gen_random_uuid(),
    member_trading boolean NOT NULL DEFAULT false,  -- whether members may have session keys too
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider, external_id)
);
GRANT SELECT ON organizations TO ti_service;
GRANT INSERT, UPDATE ON organizations TO ti_admin;
GRANT SELECT ON organizations TO ti_worker;
-- A new row of these three is not cached by anyone, and not every column is a rule.
CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON organizations
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN ((OLD.entitlements, OLD.disabled) IS DISTINCT FROM (NEW.entitlements, NEW.disabled))
EXECUTE FUNCTION count_rule_change();

-- While what an organization has is counted and one is added. Gives the time.
CREATE FUNCTION lock_organization(locked uuid) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM public.organizations
    WHERE id = locked AND id = ANY (public.current_organizations()) FOR NO KEY UPDATE;
    RETURN clock_timestamp();
END
$$;
GRANT EXECUTE ON FUNCTION lock_organization(uuid) TO ti_service;

-- A deletion is recorded first (deleting_at), done at the provider, then announced once
-- (deleted_at, with its event). The row stays, so that tokens stay refused; tokens_after refuses
-- the old ones of a user who is set up again.
CREATE TABLE users (
    id uuid PRIMARY KEY,
    provider text NOT NULL,
    external_id text NOT NULL,
    deleting_at timestamptz,
    deleting_organization_id uuid,
    deleted_at timestamptz,
    tokens_after timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider, external_id)
);
CREATE INDEX users_being_deleted ON users (deleting_at)
WHERE deleting_at IS NOT NULL AND deleted_at IS NULL;
GRANT SELECT ON users TO ti_service;
GRANT INSERT (id, provider, external_id, deleting_at, deleting_organization_id) ON users
TO ti_service;
GRANT UPDATE (deleting_at, deleting_organization_id, deleted_at) ON users TO ti_service;
GRANT INSERT, UPDATE ON users TO ti_admin;
GRANT SELECT, UPDATE ON users TO ti_worker;

CREATE TABLE memberships (
    user_id uuid NOT NULL REFERENCES users,
    organization_id uuid NOT NULL REFERENCES organizations,
    role text NOT NULL CHECK (role IN ('admin', 'member', 'read_only')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, organization_id)
);
GRANT SELECT ON memberships TO ti_service;
GRANT INSERT, UPDATE ON memberships TO ti_admin;
GRANT SELECT, DELETE ON memberships TO ti_worker;

CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    name text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('paper', 'live')),
    permissions text[] NOT NULL CHECK (
        permissions <@ ARRAY[
            'intent:read', 'intent:edit', 'control:read', 'control:edit',
            'account:read', 'account:edit', 'credential:edit', 'stream:read'
        ]
    ),
    disabled boolean NOT NULL DEFAULT false,
    digest bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    hint text NOT NULL,
    last_used_at timestamptz,
    expires_at timestamptz,
    -- Of a session key: the user that it was made for, and what was signed of the token by which it
    -- was made, with which it ends.
    user_subject text,
    token_digest bytea CHECK (octet_length(token_digest) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1
);
CREATE INDEX api_keys_by_organization ON api_keys (organization_id, id);
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON api_keys TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON api_keys FOR SELECT TO ti_worker USING (true);
CREATE POLICY owner ON api_keys TO ti_owner USING (true);
GRANT SELECT, INSERT, DELETE ON api_keys TO ti_service;
GRANT UPDATE (name, permissions, disabled, expires_at, updated_at, version) ON api_keys
TO ti_service;
GRANT SELECT ON api_keys TO ti_worker;

-- The key of a caller whose organization is not known yet: only by the digest of the whole key.
CREATE FUNCTION find_api_key(given bytea) RETURNS SETOF api_keys
LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT k.* FROM api_keys k WHERE k.digest = given;
END;
GRANT EXECUTE ON FUNCTION find_api_key(bytea) TO ti_service;

-- When keys of all organizations were last used: only forward, whichever process reports first.
CREATE FUNCTION touch_api_keys(used uuid[], used_at timestamptz[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE api_keys k SET last_used_at = u.at
    FROM unnest(used, used_at) AS u (id, at)
    WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.at);
END;
GRANT EXECUTE ON FUNCTION touch_api_keys(uuid[], timestamptz[]) TO ti_service;

CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON api_keys
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (
    (OLD.environment, OLD.permissions, OLD.disabled, OLD.expires_at)
    IS DISTINCT FROM (NEW.environment, NEW.permissions, NEW.disabled, NEW.expires_at)
)
EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_gone AFTER DELETE ON api_keys
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

CREATE TABLE service_accounts (
    client_id text PRIMARY KEY,
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),
    scopes text[] NOT NULL CHECK (
        scopes <@ ARRAY[
            'credential:read', 'intent:read', 'account:read', 'control:read', 'stream:read'
        ]
    ),
    disabled boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT ON service_accounts TO ti_service;
GRANT INSERT, UPDATE ON service_accounts TO ti_admin;
GRANT SELECT ON service_accounts TO ti_worker;

-- The outbox: one table, one mechanism, three queues.

CREATE DOMAIN outbox_queue AS text CONSTRAINT valid CHECK (
    VALUE IN ('accounts', 'intents', 'users')
);
-- The accounts queue's events are these six; the other queues have names of their own.
CREATE DOMAIN outbox_event AS text CONSTRAINT valid CHECK (
    VALUE IN (
        'account.created', 'account.updated', 'account.deleted',
        'credential.created', 'credential.updated', 'credential.deleted'
    )
    OR NOT (VALUE LIKE 'account.%' OR VALUE LIKE 'credential.%')
);
CREATE DOMAIN outbox_status AS text CONSTRAINT valid CHECK (
    VALUE IN ('pending', 'processing', 'completed', 'failed')
);
CREATE DOMAIN outbox_attempts AS bigint CONSTRAINT valid CHECK (VALUE BETWEEN 0 AND 1000);
CREATE DOMAIN outbox_payload AS jsonb CONSTRAINT valid CHECK (jsonb_typeof(VALUE) = 'object');
CREATE DOMAIN outbox_error AS text CONSTRAINT valid CHECK (char_length(VALUE) <= 500);

-- No foreign keys: a row lives for hours, the row it speaks of is written in the same transaction
-- and has them.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue outbox_queue NOT NULL,
    event_type outbox_event NOT NULL,
    organization_id uuid NOT NULL,
    order_key uuid NOT NULL,
    lane uuid,
    payload outbox_payload NOT NULL,
    status outbox_status NOT NULL DEFAULT 'pending',
    attempts outbox_attempts NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    claim_token uuid,
    finished_at timestamptz,
    last_error outbox_error,
    -- Claimed before the others of its lane: a CANCEL, and what it cancels.
    urgent boolean NOT NULL DEFAULT false,
    CONSTRAINT outbox_event_fits_queue CHECK (
        queue <> 'accounts' OR event_type LIKE 'account.%' OR event_type LIKE 'credential.%'
    ),
    CONSTRAINT outbox_lane_is_for_intents CHECK ((lane IS NOT NULL) = (queue = 'intents')),
    CONSTRAINT outbox_times_fit_status CHECK (
        (status = 'processing') = (claimed_at IS NOT NULL)
        AND (claimed_at IS NULL) = (claim_token IS NULL)
        AND (status = 'completed' OR status = 'failed') = (finished_at IS NOT NULL)
    ),
    CONSTRAINT outbox_error_fits_status CHECK (
        CASE status
            WHEN 'completed' THEN last_error IS NULL
            WHEN 'failed' THEN last_error IS NOT NULL
            ELSE true
        END
    )
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
-- No index has what a claim changes, and a page has room for the rows' next versions: claims are
-- HOT updates. Only unfinished rows are searched on the hot path, so finished ones cost a claim
-- nothing.
CREATE INDEX outbox_unfinished ON outbox (queue, id) WHERE finished_at IS NULL AND lane IS NULL;
CREATE INDEX outbox_unfinished_lanes ON outbox (lane, urgent DESC, id)
WHERE finished_at IS NULL AND lane IS NOT NULL;
CREATE INDEX outbox_order ON outbox (order_key, queue, id) WHERE finished_at IS NULL;
-- By the error, which is of failed rows alone once they are finished: the status would be what a
-- claim changes.
CREATE INDEX outbox_completed ON outbox (queue, finished_at)
WHERE finished_at IS NOT NULL AND last_error IS NULL;
CREATE INDEX outbox_failed ON outbox (queue)
WHERE finished_at IS NOT NULL AND last_error IS NOT NULL;
-- For the health report, which visits no row of another queue.
CREATE INDEX outbox_accounts ON outbox (id) WHERE queue = 'accounts';
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE outbox FORCE ROW LEVEL SECURITY;
GRANT SELECT, INSERT ON outbox TO ti_service;
-- A CANCEL makes its intent's waiting rows due.
GRANT UPDATE (due_at, urgent) ON outbox TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox TO ti_worker;
CREATE POLICY service ON outbox TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker_reads ON outbox FOR SELECT TO ti_worker USING (true);
CREATE POLICY worker_puts ON outbox FOR INSERT TO ti_worker WITH CHECK (true);
-- A final state is never left, whatever a statement says; only finished rows are removed. By the
-- status: if these named finished_at, the planner could take a partial index for a lookup by id.
CREATE POLICY worker_moves ON outbox FOR UPDATE TO ti_worker
    USING (status IN ('pending', 'processing')) WITH CHECK (true);
CREATE POLICY worker_removes ON outbox FOR DELETE TO ti_worker
    USING (status IN ('completed', 'failed'));
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

-- Failed rows that an operator retried or dropped: what they were, and who did it, when and why.
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

-- Trading accounts and their brokers' credentials.

CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    name text NOT NULL,
    broker text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('paper', 'live')),
    external_account_id text,
    disabled boolean NOT NULL DEFAULT false,
    connection text NOT NULL DEFAULT 'disconnected' CHECK (
        connection IN (
            'connected', 'connecting', 'disconnected', 'credential_missing', 'credential_rejected'
        )
    ),
    has_credential boolean NOT NULL DEFAULT false,
    link_wanted boolean NOT NULL DEFAULT false,
    link_generation bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz,
    version bigint NOT NULL DEFAULT 1
);
CREATE INDEX accounts_by_organization ON accounts (organization_id, id);
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
ALTER TABLE accounts FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON accounts TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON accounts TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON accounts TO ti_service;
GRANT SELECT, UPDATE ON accounts TO ti_worker;
CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON accounts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (
    (OLD.environment, OLD.broker, OLD.disabled, OLD.closed_at, OLD.has_credential)
    IS DISTINCT FROM (NEW.environment, NEW.broker, NEW.disabled, NEW.closed_at, NEW.has_credential)
)
EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_gone AFTER DELETE ON accounts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

CREATE TABLE credentials (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    account_id uuid NOT NULL UNIQUE REFERENCES accounts,
    broker text NOT NULL,
    label text,
    fields text[] NOT NULL,
    fingerprint text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1
);
ALTER TABLE credentials ENABLE ROW LEVEL SECURITY;
ALTER TABLE credentials FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON credentials TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON credentials TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON credentials TO ti_service;
GRANT SELECT ON credentials TO ti_worker;

-- What the vault made of a credential's secrets. The service puts one in and marks one discarded;
-- only the worker, which speaks to brokers, can read it. A discarded one stays until the vault has
-- forgotten it.
CREATE TABLE sealed_secrets (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    account_id uuid NOT NULL REFERENCES accounts,
    credential_id uuid NOT NULL,
    sealed bytea NOT NULL,
    discarded boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX sealed_secrets_in_use ON sealed_secrets (credential_id) WHERE NOT discarded;
CREATE INDEX sealed_secrets_discarded ON sealed_secrets (account_id) WHERE discarded;
ALTER TABLE sealed_secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE sealed_secrets FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON sealed_secrets TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON sealed_secrets TO ti_worker USING (true);
GRANT SELECT (organization_id, credential_id, discarded) ON sealed_secrets TO ti_service;
GRANT UPDATE (discarded) ON sealed_secrets TO ti_service;
GRANT INSERT ON sealed_secrets TO ti_service;
GRANT SELECT, UPDATE, DELETE ON sealed_secrets TO ti_worker;

-- Controls: what stops an organization, an account or a symbol from trading.

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
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON organization_controls
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

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
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON account_controls
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

-- The manual and the time control of a symbol are two records with two versions. A symbol has one
-- spelling, upper case, and the order of its bytes.
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
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON symbol_controls
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

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
-- Where orders grow stale while they work: looked at every second.
CREATE INDEX symbol_times_stale ON symbol_times (account_id) WHERE stale_order_millis IS NOT NULL;
ALTER TABLE symbol_times ENABLE ROW LEVEL SECURITY;
ALTER TABLE symbol_times FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON symbol_times TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON symbol_times FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON symbol_times TO ti_service;
GRANT SELECT ON symbol_times TO ti_worker;
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON symbol_times
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

-- `owner_id` is the organization or the account, `symbol` empty but for a symbol's limits. `rules`
-- is read as one value.
CREATE TABLE trading_limits (
    owner_id uuid NOT NULL,
    symbol text COLLATE "C" NOT NULL DEFAULT '' CHECK (
        symbol = '' OR symbol ~ '^[A-Z0-9][A-Z0-9./:_-]{0,31}$'
    ),
    organization_id uuid NOT NULL REFERENCES organizations,
    rules jsonb NOT NULL CHECK (jsonb_typeof(rules) = 'object'),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    PRIMARY KEY (owner_id, symbol)
);
-- Accounts with a daily-loss limit: looked at every second.
CREATE INDEX trading_limits_daily_loss ON trading_limits (owner_id) WHERE rules ? 'max_daily_loss';
ALTER TABLE trading_limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE trading_limits FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON trading_limits TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON trading_limits FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON trading_limits TO ti_service;
GRANT SELECT ON trading_limits TO ti_worker;
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON trading_limits
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

-- What API keys with limits, now or before, have used: orders of the last minute by second, and the
-- day's notional, in UTC. Of other keys it is the sum of their actions.
CREATE TABLE key_budgets (
    key_id uuid PRIMARY KEY REFERENCES api_keys ON DELETE CASCADE,
    organization_id uuid NOT NULL REFERENCES organizations,
    day date NOT NULL,
    daily_notional numeric NOT NULL DEFAULT 0 CHECK (daily_notional >= 0),
    seconds jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
ALTER TABLE key_budgets ENABLE ROW LEVEL SECURITY;
ALTER TABLE key_budgets FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON key_budgets TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON key_budgets FOR SELECT TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON key_budgets TO ti_service;
GRANT SELECT ON key_budgets TO ti_worker;
CREATE CONSTRAINT TRIGGER rules_added AFTER INSERT ON key_budgets
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

-- `result` is realized and unrealized when the day began in `timezone`, or when it was first judged
-- that day. `halted`: the loss was reached, and the account halted for it, which happens once for a
-- day and limit. `unpriced`: symbols of opening positions that had no price then; they count
-- nothing that day.
CREATE TABLE daily_baselines (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    day date NOT NULL,
    timezone text NOT NULL,
    result numeric NOT NULL,
    halted boolean NOT NULL DEFAULT false,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    unpriced jsonb NOT NULL DEFAULT '[]'
) WITH (fillfactor = 50);
ALTER TABLE daily_baselines ENABLE ROW LEVEL SECURITY;
ALTER TABLE daily_baselines FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON daily_baselines TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON daily_baselines TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON daily_baselines TO ti_service;
GRANT SELECT, INSERT, UPDATE ON daily_baselines TO ti_worker;

-- Halts of an organization (no account_id) or of an account, kept for ever: who stopped trading,
-- why, and who let it go on. The totals are counted from orders and positions as they are. No
-- foreign keys: a halt may begin in a transaction that holds orders, and accounts are locked before
-- them.
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
-- One that stands in a scope, an organization or an account; every submit and every send asks for
-- it.
CREATE UNIQUE INDEX halts_standing ON halts (scope_id) WHERE resumed_at IS NULL;
CREATE INDEX halts_resumed ON halts (scope_id, resumed_at) WHERE resumed_at IS NOT NULL;
CREATE INDEX halts_unfinished ON halts (id) WHERE resumed_at IS NULL AND state <> 'done';
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

-- Of an account in which a halt closes positions, written by the worker that has its lease:
-- `symbols` are those of which something was to be closed. `flat` is what the positions said when
-- the broker was found to hold nothing; while they say the same, nothing is to be closed.
CREATE TABLE halt_closings (
    halt_id uuid NOT NULL,
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    symbols text[] NOT NULL,
    positions_done bigint NOT NULL,
    waiting jsonb NOT NULL,
    flat text,
    PRIMARY KEY (halt_id, account_id)
) WITH (fillfactor = 50);
ALTER TABLE halt_closings ENABLE ROW LEVEL SECURITY;
ALTER TABLE halt_closings FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON halt_closings TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON halt_closings TO ti_worker USING (true);
GRANT SELECT, DELETE ON halt_closings TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON halt_closings TO ti_worker;

-- The stream: what happened, in order, for those who follow it.

-- A restored database has forgotten events that someone has seen: with a new epoch their cursors no
-- longer fit.
CREATE TABLE stream_epoch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch uuid NOT NULL DEFAULT gen_random_uuid(),
    -- What a process saw committed and the server does not have, until the data count as restored.
    lost_tail text
);
INSERT INTO stream_epoch DEFAULT VALUES;
GRANT SELECT, UPDATE (lost_tail) ON stream_epoch TO ti_worker, ti_service;
GRANT UPDATE (epoch) ON stream_epoch TO ti_worker;

-- Who gave the log a new epoch, when, and why: every cursor from before leads nowhere since then.
CREATE TABLE stream_epoch_renewals (
    epoch uuid PRIMARY KEY,
    before uuid NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_by text NOT NULL,
    reason text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500)
);
GRANT SELECT, INSERT ON stream_epoch_renewals TO ti_worker;

-- The last seq of an organization. Whoever appends holds its row until the commit, so seqs commit
-- in their order.
CREATE TABLE stream_heads (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    seq seq_number NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE stream_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE stream_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stream_heads TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stream_heads TO ti_worker USING (true);
GRANT SELECT, INSERT ON stream_heads TO ti_service, ti_worker;
GRANT UPDATE (seq) ON stream_heads TO ti_service, ti_worker;

-- The journal is `actions`, what was asked, and these: what was reported of one order in a
-- transaction, or of an account or the organization, whose id it has then in place of an account's.
-- `seq` is that of the last message and `count` how many there are; `events` has them one after the
-- other, and `facts` what was seen that was not recorded of the order before, in the order in which
-- it came. A fact of no order of ours, or a fee, has a report of its own. `counts` is what stats count
-- of it: measure, key, amount, and when, if that is not `at`. Appended to and read by seq, kept for ever; nobody may change one. The key has `day` so that a grown table can become a
-- partition by days. No foreign keys: the rows it speaks of are written in the same transaction and
-- have them.
CREATE TABLE reports (
    organization_id uuid NOT NULL,
    seq seq_number NOT NULL,
    count message_count NOT NULL,
    day date NOT NULL,
    account_id uuid NOT NULL,
    order_id uuid,
    at timestamptz NOT NULL,
    symbol text NOT NULL,
    environment environment NOT NULL,
    facts json,
    counts json,
    events bytea NOT NULL,
    PRIMARY KEY (organization_id, seq, day)
);
CREATE INDEX reports_by_order ON reports (order_id, seq) WHERE facts IS NOT NULL;
-- Facts without an order: by their keys, and by the broker's id, under which alone something may be
-- reported before we know that it is ours.
CREATE INDEX reports_by_key ON reports (account_id, (facts -> 0 ->> 'key'))
WHERE order_id IS NULL AND facts IS NOT NULL;
CREATE INDEX reports_astray ON reports (account_id, (facts -> 0 ->> 'broker_order_id'))
WHERE order_id IS NULL AND facts IS NOT NULL;
ALTER TABLE reports ENABLE ROW LEVEL SECURITY;
ALTER TABLE reports FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON reports TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON reports TO ti_worker USING (true);
GRANT SELECT, INSERT ON reports TO ti_service, ti_worker;

-- Intents: an account's head, its append-only log of actions, the orders that they make, and what
-- was refused.

-- One row per account. Who appends to the account's log holds it, so seq is dense and commits in
-- order. Every submit updates it: with room beside it the new version stays on the page and needs
-- no index entry.
CREATE TABLE account_heads (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    organization_id uuid NOT NULL,
    seq bigint NOT NULL DEFAULT 0,
    hash text NOT NULL DEFAULT repeat('0', 64)
) WITH (fillfactor = 20);
ALTER TABLE account_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE account_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON account_heads TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON account_heads TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON account_heads TO ti_service, ti_worker;

-- `record` is the canonical JSON that was hashed: reads serve it as it is, and a check needs no
-- rebuilding. `stream_seq` is that of the second of its two messages in the stream; `events` has
-- those of a REPLACE or CANCEL, which show the order as it was; a CREATE's are rendered of its
-- record. `added_notional` is what it adds to its key's sum of the day. No foreign keys: the head
-- that is held while a row is added has them.
CREATE TABLE actions (
    account_id uuid NOT NULL,
    seq seq_number NOT NULL,
    intent_id uuid NOT NULL,
    action_id uuid NOT NULL DEFAULT gen_random_uuid(),
    organization_id uuid NOT NULL,
    action_type action_type NOT NULL,
    idempotency_key idempotency_key,
    body_digest bytea CHECK ((body_digest IS NULL) = (idempotency_key IS NULL)),
    created_at timestamptz NOT NULL,
    record text NOT NULL,
    hash chain_hash NOT NULL,
    stream_seq seq_number NOT NULL,
    events bytea,
    added_notional numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (account_id, seq)
);
CREATE INDEX actions_by_stream ON actions (organization_id, stream_seq);
-- A key may be used again after 400 days: two uses in one span of 400 days are too near.
CREATE UNIQUE INDEX actions_by_key
ON actions (
    account_id, idempotency_key,
    (((created_at AT TIME ZONE 'UTC')::date - date '2020-01-01') / 400)
)
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
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON actions
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON actions
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- One order per intent; its id is the intent's. The fields show the last version that the broker
-- confirmed.
CREATE TABLE orders (
    order_id uuid PRIMARY KEY,
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    environment text NOT NULL,
    broker text NOT NULL,
    create_seq bigint NOT NULL,
    command_seq bigint NOT NULL,
    symbol text NOT NULL,
    order_status order_status NOT NULL DEFAULT 'PENDING_NEW',
    order_type order_type NOT NULL,
    order_side order_side NOT NULL,
    time_in_force text NOT NULL,
    route_strategy text NOT NULL,
    quantity filled_amount NOT NULL,  -- 0: an exit with nothing to work so far
    limit_price amount,
    stop_price amount,
    trail_amount amount,
    trail_bps bigint,
    filled_quantity filled_amount NOT NULL DEFAULT 0,
    average_price numeric,
    external_order_id text,
    client_reference_id text,
    reason text,
    detail text,
    flags text[] NOT NULL DEFAULT '{}',
    pending_replace_seq bigint,
    cancel_requested boolean NOT NULL DEFAULT false,
    broker_sent_at timestamptz,
    received_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    finished_at timestamptz,
    lookup_due_at timestamptz,
    lookups bigint NOT NULL DEFAULT 0,
    absent_at timestamptz,
    -- Made to close a position: by a caller, or by a halt.
    closes boolean NOT NULL DEFAULT false,
    -- What its versions so far have added to days' sums of keys, together: a REPLACE adds the rest.
    counted_notional numeric NOT NULL DEFAULT 0,
    -- Of an order that its broker links to another: null, null and true of every other.
    leg text,
    parent_order_id uuid,
    active boolean NOT NULL DEFAULT true,
    -- It is a leg, or has some.
    linked boolean NOT NULL DEFAULT false,
    -- Of a final entry: since when its exits do not cover its fills, while the position is open.
    uncovered_since timestamptz,
    CONSTRAINT orders_prices_fit_type CHECK (
        (limit_price IS NOT NULL) = (order_type LIKE '%LIMIT')
        AND (order_type = 'TRAILING_STOP' OR (stop_price IS NOT NULL) = (order_type LIKE 'STOP%'))
        AND num_nonnulls(trail_amount, trail_bps) = (order_type = 'TRAILING_STOP')::integer
    )
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE UNIQUE INDEX orders_by_account ON orders (account_id, create_seq);
CREATE INDEX orders_open ON orders (account_id) WHERE finished_at IS NULL;
CREATE INDEX orders_finished ON orders (account_id, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX orders_by_status ON orders (account_id, order_status, create_seq)
WHERE finished_at IS NOT NULL;
CREATE INDEX orders_by_reference ON orders (account_id, client_reference_id, create_seq)
WHERE client_reference_id IS NOT NULL;
CREATE INDEX orders_by_parent ON orders (account_id, parent_order_id, create_seq)
WHERE parent_order_id IS NOT NULL;
CREATE INDEX orders_flagged ON orders (account_id, create_seq) WHERE flags <> '{}';
CREATE INDEX orders_uncovered ON orders (account_id, symbol) WHERE uncovered_since IS NOT NULL;
CREATE INDEX orders_to_look_up ON orders (account_id, lookup_due_at)
WHERE lookup_due_at IS NOT NULL;
-- Orders with a command that the broker has not answered.
CREATE INDEX orders_pending ON orders (account_id)
WHERE cancel_requested OR pending_replace_seq IS NOT NULL;
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

-- Stats: what each account did, counted in buckets of time.

-- How far the organization's journal is counted. Apart from stream_heads, whose rows every append
-- updates.
CREATE TABLE stats_heads (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    rolled_seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
ALTER TABLE stats_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE stats_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stats_heads TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stats_heads TO ti_worker USING (true);
GRANT SELECT ON stats_heads TO ti_service;
GRANT SELECT, INSERT, UPDATE ON stats_heads TO ti_worker;

-- Everything is counted in a bucket of each width, so that a window is read as a few wide buckets
-- and the narrow ones at its edge. `measure` and `key` say what: an action type, a symbol, a
-- refusal's reason, a final status, a latency.
CREATE TABLE stats_buckets (
    account_id uuid NOT NULL,
    width_seconds bigint NOT NULL CHECK (width_seconds IN (60, 600, 3600, 21600, 86400, 604800)),
    start timestamptz NOT NULL,
    measure text NOT NULL,
    key text NOT NULL,
    organization_id uuid NOT NULL,
    amount numeric NOT NULL,
    PRIMARY KEY (account_id, width_seconds, start, measure, key)
) WITH (fillfactor = 80);
CREATE INDEX stats_buckets_by_age ON stats_buckets (width_seconds, start);
ALTER TABLE stats_buckets ENABLE ROW LEVEL SECURITY;
ALTER TABLE stats_buckets FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stats_buckets TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stats_buckets TO ti_worker USING (true);
GRANT SELECT, INSERT ON stats_buckets TO ti_service, ti_worker;
GRANT UPDATE (amount) ON stats_buckets TO ti_service, ti_worker;
GRANT DELETE ON stats_buckets TO ti_worker;

-- What was refused, which the journal does not have, and is not in the buckets yet: a worker adds it,
-- and removes it here, in one transaction.
CREATE TABLE stats_entries (
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    at timestamptz NOT NULL,
    measure text NOT NULL,
    key text NOT NULL,
    amount numeric NOT NULL
);
CREATE INDEX stats_entries_by_account ON stats_entries (account_id);
ALTER TABLE stats_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE stats_entries FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stats_entries TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stats_entries TO ti_worker USING (true);
GRANT SELECT, INSERT ON stats_entries TO ti_service, ti_worker;
GRANT DELETE, UPDATE ON stats_entries TO ti_worker;

-- The ledger: commands on their way to a broker, and the trades and positions that reports make.

-- A command from the moment its send is marked; a CANCEL has a row for each attempt. Once sent_at
-- is set it may have been sent, and is looked up: while unclear_at says that its answer was lost,
-- until it is known, or proved never to have arrived, which takes the mark of a CREATE back if it
-- may be sent again. No foreign keys here and below: the order, which is locked while a row is
-- written, has been there since its CREATE.
CREATE TABLE commands (
    account_id uuid NOT NULL,
    client_order_id text NOT NULL,
    organization_id uuid NOT NULL,
    order_id uuid NOT NULL,
    seq bigint NOT NULL,
    action_type text NOT NULL CHECK (action_type IN ('CREATE', 'REPLACE', 'CANCEL')),
    sent_at timestamptz,
    broker_order_id text,
    unclear_at timestamptz,
    -- When a backup was restored that this CREATE or REPLACE is from: it may have been sent after
    -- the backup was made, so it is never sent, only looked up. NULL: it is not from a restored
    -- backup.
    restored_at timestamptz,
    PRIMARY KEY (account_id, client_order_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE INDEX commands_by_order ON commands (order_id);
-- Not unique: venues use their ids again.
CREATE INDEX commands_by_broker_order ON commands (account_id, broker_order_id)
WHERE broker_order_id IS NOT NULL;
ALTER TABLE commands ENABLE ROW LEVEL SECURITY;
ALTER TABLE commands FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON commands FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON commands TO ti_worker USING (true);
GRANT SELECT ON commands TO ti_service;
GRANT SELECT, INSERT, UPDATE ON commands TO ti_worker;

-- `seq` is that of the stream's message that showed the trade last, `booking` its rank among the
-- symbol's trades for ever. A busted trade, or a gap that real executions filled, stays with
-- quantity zero.
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
    cum_quantity numeric,  -- as the broker counted, this one included
    received_at timestamptz NOT NULL,
    -- Its seq is not that of the first event that showed it, and so does not follow received_at.
    is_retold boolean NOT NULL DEFAULT false,
    UNIQUE (order_id, exec_id)
);
CREATE INDEX trades_by_account ON trades (account_id, seq);
CREATE INDEX trades_retold ON trades (account_id, seq) WHERE is_retold;
-- What a position is summed up from again.
CREATE INDEX trades_by_symbol ON trades (account_id, symbol, booking);
ALTER TABLE trades ENABLE ROW LEVEL SECURITY;
ALTER TABLE trades FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON trades FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON trades TO ti_worker USING (true);
GRANT SELECT ON trades TO ti_service;
GRANT SELECT, INSERT, UPDATE ON trades TO ti_worker;

-- A symbol in an account. First what is open of it: orders, and their unfilled quantities by side; of
-- two versions of an order the larger counts. Who changes an order adds the difference in the same
-- transaction. Then the position, which recordings alone write: at average cost, from the opening
-- (what was held before our first trade) and our trades. broker_quantity is what the broker last
-- reported, under broker_key at broker_sent_at; differs says whether the two do not agree, NULL before
-- a report. received_at is NULL until a position is first booked: readers of positions skip the row.
CREATE TABLE holdings (
    organization_id uuid NOT NULL,
    account_id uuid NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    open_orders bigint NOT NULL DEFAULT 0,
    open_buy numeric NOT NULL DEFAULT 0,
    open_sell numeric NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 0,  -- how often the position was written
    quantity numeric NOT NULL DEFAULT 0,
    open_cost numeric NOT NULL DEFAULT 0,
    realized_pnl numeric NOT NULL DEFAULT 0,
    value_bought numeric NOT NULL DEFAULT 0,
    value_sold numeric NOT NULL DEFAULT 0,
    fees numeric NOT NULL DEFAULT 0,
    fee_quantity numeric NOT NULL DEFAULT 0,  -- taken from what was bought, as venues of coins do
    day date,
    day_pnl numeric NOT NULL DEFAULT 0,
    opening_quantity numeric NOT NULL DEFAULT 0,
    opening_price numeric,
    opening_cost numeric NOT NULL DEFAULT 0,
    uncosted_quantity numeric NOT NULL DEFAULT 0,
    broker_quantity numeric,
    broker_key text,
    broker_sent_at timestamptz,
    differs boolean,
    received_at timestamptz,
    PRIMARY KEY (organization_id, account_id, symbol)
) WITH (fillfactor = 20);
ALTER TABLE holdings ENABLE ROW LEVEL SECURITY;
ALTER TABLE holdings FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON holdings TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON holdings TO ti_worker USING (true);
GRANT SELECT, INSERT (organization_id, account_id, symbol, open_orders, open_buy, open_sell),
    UPDATE (open_orders, open_buy, open_sell) ON holdings TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdings TO ti_worker;

-- The revision of a position that is written, one more than it was read with. Another one was written
-- meanwhile: the transaction is over, as if it had met it under SERIALIZABLE.
CREATE FUNCTION next_revision(present bigint, written bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF written <> present + 1 THEN
        RAISE serialization_failure USING MESSAGE = 'the position was written meanwhile';
    END IF;
    RETURN written;
END
$$;
GRANT EXECUTE ON FUNCTION next_revision(bigint, bigint) TO ti_worker;

-- Accounts whose openings are set, which happens once, by the first snapshot that has positions.
CREATE TABLE position_openings (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    opened_at timestamptz NOT NULL
);
ALTER TABLE position_openings ENABLE ROW LEVEL SECURITY;
ALTER TABLE position_openings FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON position_openings FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON position_openings TO ti_worker USING (true);
GRANT SELECT ON position_openings TO ti_service;
GRANT SELECT, INSERT ON position_openings TO ti_worker;

-- Prices and money, as the ledger and the brokers report them.

-- A market: the simulated one is the built-in paper broker's; the others are those of all other
-- brokers.
CREATE DOMAIN price_market AS text CONSTRAINT valid CHECK (VALUE IN ('simulated', 'paper', 'live'));
CREATE DOMAIN price_source AS text CONSTRAINT valid CHECK (VALUE IN ('posted', 'trade', 'quote'));

-- The newest price that an organization knows of a symbol in a market, of all that is stored: a
-- posted price, its last trade, or what a broker reported. The paper broker's quotes are not in it:
-- they are read where they are.
CREATE TABLE reference_prices (
    organization_id uuid NOT NULL REFERENCES organizations,
    environment price_market NOT NULL,  -- a market
    symbol text COLLATE "C" NOT NULL,
    price amount NOT NULL,
    source price_source NOT NULL,
    as_of timestamptz NOT NULL,
    PRIMARY KEY (organization_id, environment, symbol)
) WITH (fillfactor = 70);
ALTER TABLE reference_prices ENABLE ROW LEVEL SECURITY;
ALTER TABLE reference_prices FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON reference_prices TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON reference_prices TO ti_worker USING (true);
GRANT SELECT, INSERT ON reference_prices TO ti_service, ti_worker;
GRANT UPDATE (price, source, as_of) ON reference_prices TO ti_service, ti_worker;

-- What an account's broker last reported of its money; an account without a row had no report.
CREATE TABLE balances (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    currency text,
    cash numeric,
    buying_power numeric,
    equity numeric,
    as_of timestamptz NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE balances ENABLE ROW LEVEL SECURITY;
ALTER TABLE balances FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON balances FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON balances TO ti_worker USING (true);
GRANT SELECT ON balances TO ti_service;
GRANT SELECT, INSERT ON balances TO ti_worker;
GRANT UPDATE (currency, cash, buying_power, equity, as_of) ON balances TO ti_worker;

-- What accounts were worth, at the end of spans in which that changed. Minutes are pruned, the
-- others kept for ever.
CREATE TABLE equity_points (
    account_id uuid NOT NULL,
    organization_id uuid NOT NULL,
    resolution text NOT NULL CHECK (resolution IN ('1m', '1h', '1d')),
    at timestamptz NOT NULL,
    equity numeric,
    cash numeric,
    realized_pnl numeric NOT NULL,
    unrealized_pnl numeric NOT NULL,
    PRIMARY KEY (account_id, resolution, at)
) WITH (fillfactor = 70);
CREATE INDEX equity_minutes_by_time ON equity_points (at) WHERE resolution = '1m';
ALTER TABLE equity_points ENABLE ROW LEVEL SECURITY;
ALTER TABLE equity_points FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON equity_points FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON equity_points TO ti_worker USING (true);
GRANT SELECT ON equity_points TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON equity_points TO ti_worker;

-- Workers, and which of them works which account.

-- A worker's process, while it lives: with one row to renew, thousands of leases cost no more than
-- one. What it leased is free once this has expired; a worker that finds that of itself comes back
-- as another.
CREATE TABLE workers (
    id uuid PRIMARY KEY,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);
GRANT SELECT ON workers TO ti_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON workers TO ti_worker;

-- Who holds an account's lease is the one to claim its intents and to have a session with its
-- broker. `token` grows whenever it changes hands. The broker's executions are recorded up to
-- `seen_at`.
CREATE TABLE leases (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    organization_id uuid NOT NULL,
    worker_id uuid,
    token bigint NOT NULL DEFAULT 1,
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

-- The paper broker's own tables: its accounts, orders, events and prices. Nothing else reads them,
-- but for the quotes that an organization posts.

-- Totals over all symbols, and the last number that was given to an event. Whoever works an account
-- holds its row until the commit, so events are numbered as they commit, and books in memory are
-- true as long as it is the same.
CREATE TABLE paper_accounts (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    cash numeric NOT NULL,
    reserved numeric NOT NULL DEFAULT 0,
    short_value numeric NOT NULL DEFAULT 0,
    events bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
ALTER TABLE paper_accounts ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_accounts FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON paper_accounts FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON paper_accounts TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON paper_accounts TO ti_worker;
GRANT SELECT ON paper_accounts TO ti_service;

-- A symbol in an account: the position, and how much of the sizes of the quote that was worked last
-- is used.
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
) WITH (fillfactor = 50);
ALTER TABLE paper_holdings ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_holdings FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON paper_holdings FOR SELECT TO ti_service
    -- OFFSET 0: else the planner may read every account of the venue instead of this one.
    USING (EXISTS (
        SELECT FROM paper_accounts a WHERE a.account_id = paper_holdings.account_id OFFSET 0
    ));
CREATE POLICY worker ON paper_holdings TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON paper_holdings TO ti_worker;
GRANT SELECT ON paper_holdings TO ti_service;

-- Orders while they work. `number` is that of the order's first event.
CREATE TABLE paper_working (
    account_id uuid NOT NULL,
    number bigint NOT NULL,
    state json NOT NULL,
    PRIMARY KEY (account_id, number)
) WITH (fillfactor = 50);
ALTER TABLE paper_working ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_working FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_working TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON paper_working TO ti_worker;

-- What happened, in its order: every command, once for each arrival, with what it caused at once, and
-- what came later. A row is a run of events of one order, `number`, and `seq` the number of the first
-- of them; one without an event takes a number too.
CREATE TABLE paper_journal (
    account_id uuid NOT NULL,
    seq bigint NOT NULL,
    number bigint,
    at timestamptz NOT NULL,
    -- Of an arrival. A leg arrives with its entry, without a ticket of its own.
    command text CHECK (command IN ('SUBMIT', 'REPLACE', 'CANCEL')),
    client_order_id text,
    duplicate boolean,
    ticket json,
    events json NOT NULL,
    ended json, -- the order as it ended, if it did
    PRIMARY KEY (account_id, seq)
);
CREATE UNIQUE INDEX paper_journal_by_client_id ON paper_journal (account_id, client_order_id)
WHERE NOT duplicate;
CREATE INDEX paper_journal_later ON paper_journal (account_id, number, seq) WHERE seq > number;
ALTER TABLE paper_journal ENABLE ROW LEVEL SECURITY;
ALTER TABLE paper_journal FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON paper_journal TO ti_worker USING (true);
GRANT SELECT, INSERT ON paper_journal TO ti_worker;

-- What shall go wrong, on accounts of tests: with this chance, for so many more commands (NULL: for
-- ever).
CREATE TABLE paper_faults (
    account_id uuid NOT NULL,
    kind text NOT NULL CHECK (
        kind IN (
            'reject', 'lose', 'drop_answer', 'duplicate', 'delay', 'reorder', 'overfill',
            'disconnect'
        )
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

-- Symbols that an organization prices itself, with the last quote's number; who posts holds the row
-- until the commit.
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

-- The FIX sessions' own tables: the numbers of each account's session, and its messages.

-- `token` is that of the lease that has the session: nobody else writes. `epoch` counts the resets
-- of the numbers.
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

-- Messages that were sent or will be, each stored before it is written to the socket. One that has
-- a `client_order_id` is a command: it is sent again when the venue asks for it, until it is
-- answered or `not_after` has come; then `skipped_at` says that it was left out.
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
CREATE INDEX fix_out_by_client_order_id ON fix_out (client_order_id, account_id)
WHERE client_order_id IS NOT NULL;
CREATE INDEX fix_out_unanswered ON fix_out (account_id, at) WHERE NOT is_answered;
CREATE INDEX fix_out_skipped ON fix_out (account_id, skipped_at) WHERE skipped_at IS NOT NULL;
ALTER TABLE fix_out ENABLE ROW LEVEL SECURITY;
ALTER TABLE fix_out FORCE ROW LEVEL SECURITY;
CREATE POLICY worker ON fix_out TO ti_worker USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON fix_out TO ti_worker;

-- Messages that came, as they came. `is_open`: the last report of an order that works.
-- `refused_number`: it rejects this message of ours.
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
