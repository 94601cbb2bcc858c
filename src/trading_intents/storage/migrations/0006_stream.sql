-- The event log: what happened, in order, for those who follow it.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout

-- A restored database has forgotten events that someone has seen: with a new epoch their cursors no longer fit.
CREATE TABLE stream_epoch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO stream_epoch DEFAULT VALUES;
GRANT SELECT ON stream_epoch TO ti_worker;

-- The last seq of an organization. Whoever appends holds its row until the commit, so seqs commit in their order.
CREATE TABLE stream_heads (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    seq bigint NOT NULL CHECK (seq > 0)
) WITH (fillfactor = 50);
ALTER TABLE stream_heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE stream_heads FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stream_heads TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON stream_heads TO ti_worker USING (true);
GRANT SELECT, INSERT ON stream_heads TO ti_service, ti_worker;
GRANT UPDATE (seq) ON stream_heads TO ti_service, ti_worker;

-- Appended to and read by seq; nobody may change an event. No foreign keys: an event lives for days, and the rows it
-- speaks of are written in the same transaction and have them.
CREATE TABLE stream_events (
    organization_id uuid NOT NULL,
    seq bigint NOT NULL CHECK (seq > 0),
    account_id uuid NOT NULL,
    environment text NOT NULL CHECK (environment IN ('paper', 'live')),
    -- squawk-ignore prefer-bigint-over-smallint
    kind smallint NOT NULL CHECK (kind BETWEEN 1 AND 4),
    symbol text NOT NULL,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, seq, created_at)
) PARTITION BY RANGE (created_at);
ALTER TABLE stream_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE stream_events FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON stream_events FOR INSERT TO ti_service
    WITH CHECK (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker_reads ON stream_events FOR SELECT TO ti_worker USING (true);
CREATE POLICY worker_appends ON stream_events FOR INSERT TO ti_worker WITH CHECK (true);
GRANT INSERT ON stream_events TO ti_service;
GRANT SELECT, INSERT ON stream_events TO ti_worker;

-- Takes what has no day of its own, so that an append never fails because upkeep is late. A partition is reached
-- through stream_events only: it grants nothing and has no policy, but for the owner's upkeep here.
CREATE TABLE stream_events_default PARTITION OF stream_events DEFAULT;
CREATE INDEX stream_events_default_by_day ON stream_events_default (created_at);
ALTER TABLE stream_events_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE stream_events_default FORCE ROW LEVEL SECURITY;
CREATE POLICY owner ON stream_events_default TO ti_owner USING (true);

-- Makes the partitions of today and of the days ahead; drops what is older than keep_days. Days are UTC's. A day that
-- already has events in the default partition gets none of its own: moving them could hide them from a reader whose plan
-- does not know the new one. They are read where they are, and removed when they are old enough.
-- What does not get its lock soon is left to the next call, as is what is too much for one: `late` tells.
CREATE FUNCTION stream_keep_partitions(
    days_ahead integer, keep_days integer, OUT created bigint, OUT dropped bigint, OUT late boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms'
AS $$
DECLARE
    most_removed CONSTANT bigint := 50000;
    today CONSTANT date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    day date;
    name text;
    removed bigint;
BEGIN
    created := 0;
    dropped := 0;
    late := false;
    IF days_ahead NOT BETWEEN 0 AND 30 OR keep_days < 7 THEN
        RAISE EXCEPTION 'days ahead are 0 to 30, and events are kept for 7 days at least';
    END IF;
    IF NOT pg_try_advisory_xact_lock(7469003) THEN
        RETURN;  -- another process is at it
    END IF;

    -- Dropping comes first: it locks the parent, as everyone does before locking a partition.
    BEGIN
        FOR name IN
            SELECT c.relname
            FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'public.stream_events'::regclass AND c.relname <> 'stream_events_default'
              AND c.relname < 'stream_events_' || to_char(today - keep_days, 'YYYYMMDD')
            ORDER BY c.relname
        LOOP
            EXECUTE format('DROP TABLE public.%I', name);
            dropped := dropped + 1;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        dropped := 0;
        late := true;
    END;

    DELETE FROM public.stream_events_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM public.stream_events_default
        WHERE created_at < (today - keep_days)::timestamp AT TIME ZONE 'UTC'
        LIMIT most_removed
    ));
    GET DIAGNOSTICS removed = ROW_COUNT;
    late := late OR removed = most_removed;

    BEGIN
        FOR day IN SELECT today + n FROM generate_series(0, days_ahead) AS n LOOP
            name := 'stream_events_' || to_char(day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass('public.' || name) IS NOT NULL OR EXISTS (
                SELECT FROM public.stream_events_default
                WHERE created_at >= day::timestamp AT TIME ZONE 'UTC'
                  AND created_at < (day + 1)::timestamp AT TIME ZONE 'UTC'
            );
            -- Attached, as creating it as a partition would lock out everyone who appends.
            EXECUTE format(
                'CREATE TABLE public.%1$I (LIKE public.stream_events INCLUDING ALL);'
                'ALTER TABLE public.%1$I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;'
                'ALTER TABLE public.stream_events ATTACH PARTITION public.%1$I FOR VALUES FROM (%2$L) TO (%3$L)',
                name, to_char(day, 'YYYY-MM-DD 00:00+00'), to_char(day + 1, 'YYYY-MM-DD 00:00+00')
            );
            created := created + 1;
        END LOOP;
    -- The check violation: an event came to the default partition in between.
    EXCEPTION WHEN lock_not_available OR check_violation THEN
        created := 0;
        late := true;
    END;
END
$$;
GRANT EXECUTE ON FUNCTION stream_keep_partitions(integer, integer) TO ti_service, ti_worker;
