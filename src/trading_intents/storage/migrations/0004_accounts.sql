-- Trading accounts and their broker credentials.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    name text NOT NULL,
    broker text NOT NULL,
    environment text NOT NULL CHECK (environment IN ('paper', 'live')),
    external_account_id text,
    disabled boolean NOT NULL DEFAULT false,
    connection text NOT NULL DEFAULT 'disconnected' CHECK (
        connection IN ('connected', 'connecting', 'disconnected', 'credential_missing', 'credential_rejected')
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

-- What the vault made of a credential's secrets. The service puts one in and marks one discarded; only the worker,
-- which speaks to brokers, can read it. A discarded one stays until the vault has forgotten it.
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
