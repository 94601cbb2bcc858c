-- The whole schema as it stands: what the migrations add up to, which a test proves. Nothing runs this file.

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

-- The organizations whose rows a transaction may see; none when it did not say. The one pattern for tenant tables:
--
--   ALTER TABLE things ENABLE ROW LEVEL SECURITY;
--   ALTER TABLE things FORCE ROW LEVEL SECURITY;
--   CREATE POLICY service ON things TO ti_service
--       USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
--
-- The SELECT makes it a value computed once a statement, which an index can use; the cast keeps it an array.
CREATE FUNCTION current_organizations() RETURNS uuid[]
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(nullif(current_setting('trading_intents.organizations', true), '')::uuid[], '{}'::uuid[]);
GRANT EXECUTE ON FUNCTION current_organizations() TO ti_service, ti_worker;
