-- Who can call: identity tables, without tenant policy, because a caller is looked up before the organization is known.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

CREATE TABLE organizations (
    id uuid PRIMARY KEY,
    provider text NOT NULL,
    external_id text NOT NULL,
    name text NOT NULL,
    entitlements text[] NOT NULL DEFAULT '{}' CHECK (entitlements <@ ARRAY['controls_premium', 'trading_live']),
    disabled boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider, external_id)
);
GRANT SELECT, INSERT, UPDATE ON organizations TO ti_service;
GRANT SELECT ON organizations TO ti_worker;

CREATE TABLE users (
    id uuid PRIMARY KEY,
    provider text NOT NULL,
    external_id text NOT NULL,
    deleted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider, external_id)
);
GRANT SELECT, INSERT, UPDATE ON users TO ti_service;
GRANT SELECT ON users TO ti_worker;

CREATE TABLE memberships (
    user_id uuid NOT NULL REFERENCES users,
    organization_id uuid NOT NULL REFERENCES organizations,
    role text NOT NULL CHECK (role IN ('admin', 'member', 'read_only')),
    PRIMARY KEY (user_id, organization_id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON memberships TO ti_service;
GRANT SELECT ON memberships TO ti_worker;

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
