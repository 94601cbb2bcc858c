-- Who can call: identity tables, without tenant policy, because a caller is looked up before the organization is known.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

CREATE TABLE organizations (
    id uuid PRIMARY KEY,
    provider text NOT NULL,
    external_id text NOT NULL,
    name text NOT NULL,
    entitlements text[] NOT NULL DEFAULT '{}' CHECK (entitlements <@ ARRAY['controls_premium', 'trading_live']),
    disabled boolean NOT NULL DEFAULT false,
    fingerprint_key uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider, external_id)
);
GRANT SELECT, INSERT, UPDATE ON organizations TO ti_service;
GRANT SELECT ON organizations TO ti_worker;

-- A deletion is recorded first (deleting_at), done at the provider, then told once (deleted_at, with its event).
-- The row stays, so that tokens stay refused; tokens_after refuses the old ones of a user who is set up again.
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
CREATE INDEX users_being_deleted ON users (deleting_at) WHERE deleting_at IS NOT NULL AND deleted_at IS NULL;
GRANT SELECT, INSERT, UPDATE ON users TO ti_service;
GRANT SELECT, UPDATE ON users TO ti_worker;

CREATE TABLE memberships (
    user_id uuid NOT NULL REFERENCES users,
    organization_id uuid NOT NULL REFERENCES organizations,
    role text NOT NULL CHECK (role IN ('admin', 'member', 'read_only')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, organization_id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON memberships TO ti_service;
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
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    version bigint NOT NULL DEFAULT 1
);
CREATE INDEX api_keys_by_organization ON api_keys (organization_id, id);
GRANT SELECT, INSERT, UPDATE, DELETE ON api_keys TO ti_service;
GRANT SELECT ON api_keys TO ti_worker;

CREATE TABLE service_accounts (
    client_id text PRIMARY KEY,
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),
    scopes text[] NOT NULL CHECK (
        scopes <@ ARRAY['credential:read', 'intent:read', 'account:read', 'control:read', 'stream:read']
    ),
    disabled boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT, UPDATE ON service_accounts TO ti_service;
GRANT SELECT ON service_accounts TO ti_worker;
