-- What the platform needs before it has a table of its own.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

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

-- A column of texts that was sent as one: values between unit separators, NULL as a record separator. It is never empty:
-- what looks so is one empty text.
CREATE FUNCTION from_column(joined text) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN joined = '' THEN ARRAY[''] ELSE string_to_array(joined, chr(31), chr(30)) END;
GRANT EXECUTE ON FUNCTION from_column(text) TO ti_service, ti_worker;
