-- squawk-ignore-file require-lock-timeout, require-statement-timeout
-- Not STRICT, so that the server puts it in place of its call: called, it cost more than what it does.
CREATE OR REPLACE FUNCTION from_column(joined text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN joined = '' THEN ARRAY[''] ELSE string_to_array(joined, chr(31), chr(30)) END;
