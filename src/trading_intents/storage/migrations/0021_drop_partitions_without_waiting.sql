-- Upkeep of the event log's days makes nobody wait: it takes its locks when nobody keeps the tables, or later.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
-- Whether a transaction keeps one of these tables locked: one that comes and goes within a moment does not. A lock that
-- waits behind it would make everybody wait who comes after.
CREATE FUNCTION stream_tables_are_held(tables oid[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    holders text[];
BEGIN
    holders := ARRAY(
        SELECT l.virtualtransaction FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
        WHERE d.datname = current_database() AND l.relation = ANY (tables) AND l.granted
          AND l.pid IS DISTINCT FROM pg_backend_pid()
    );
    IF holders = '{}' THEN
        RETURN false;
    END IF;
    PERFORM pg_sleep(0.1);
    RETURN EXISTS (
        SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
        WHERE d.datname = current_database() AND l.relation = ANY (tables) AND l.granted
          AND l.virtualtransaction = ANY (holders)
    );
END
$$;

-- Makes the partitions of today and of the days ahead. Days are UTC's. A day that already has events in the default
-- partition gets none of its own: moving them could hide them from a reader whose plan does not know the new one. They are
-- read where they are, and removed when they are old enough.
-- What does not get its lock at once is left to the next call: `late` tells. `dropped` is from an earlier version.
CREATE OR REPLACE FUNCTION stream_keep_partitions(
    days_ahead integer, keep_days integer, OUT created bigint, OUT dropped bigint, OUT late boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    today CONSTANT date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    day date;
    name text;
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
    BEGIN
        FOR day IN SELECT today + n FROM generate_series(0, days_ahead) AS n LOOP
            name := 'stream_events_' || to_char(day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass('public.' || name) IS NOT NULL;
            -- Attaching locks the default partition, and today's the parent too.
            IF public.stream_tables_are_held(
                ARRAY['public.stream_events_default'::regclass]::oid[]
                || CASE WHEN day = today THEN ARRAY['public.stream_events'::regclass]::oid[] END
            ) THEN
                late := true;
                CONTINUE;
            END IF;
            -- Today's events are on their way: one that was sent to the default partition before would be refused there.
            IF day = today THEN
                BEGIN
                    LOCK TABLE ONLY public.stream_events IN SHARE ROW EXCLUSIVE MODE;
                EXCEPTION WHEN lock_not_available THEN
                    late := true;
                    CONTINUE;
                END;
            END IF;
            CONTINUE WHEN EXISTS (
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

-- Removes events older than keep_days. In a transaction of its own: a drop locks out everyone until the commit. It is
-- done only when nobody keeps the tables, and else left to the next call, as is what is too much for one: `late` tells.
CREATE FUNCTION stream_drop_partitions(keep_days integer, OUT dropped bigint, OUT late boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    most_removed CONSTANT bigint := 50000;
    today CONSTANT date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    old regclass[];
    partition regclass;
    removed bigint;
BEGIN
    dropped := 0;
    late := false;
    IF keep_days < 7 THEN
        RAISE EXCEPTION 'events are kept for 7 days at least';
    END IF;
    IF NOT pg_try_advisory_xact_lock(7469003) THEN
        RETURN;  -- another process is at it
    END IF;
    old := ARRAY(
        SELECT c.oid::regclass
        FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'public.stream_events'::regclass AND c.relname <> 'stream_events_default'
          AND c.relname < 'stream_events_' || to_char(today - keep_days, 'YYYYMMDD')
        ORDER BY c.relname
    );
    DELETE FROM public.stream_events_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM public.stream_events_default
        WHERE created_at < (today - keep_days)::timestamp AT TIME ZONE 'UTC'
        LIMIT most_removed
    ));
    GET DIAGNOSTICS removed = ROW_COUNT;
    late := removed = most_removed;
    IF old = '{}' THEN
        RETURN;
    END IF;
    IF public.stream_tables_are_held(
        ARRAY['public.stream_events'::regclass, 'public.stream_events_default'::regclass]::oid[] || old::oid[]
    ) THEN
        late := true;
        RETURN;
    END IF;
    BEGIN
        FOREACH partition IN ARRAY old LOOP
            EXECUTE format('DROP TABLE %s', partition);
            dropped := dropped + 1;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        dropped := 0;
        late := true;
    END;
END
$$;
GRANT EXECUTE ON FUNCTION stream_drop_partitions(integer) TO ti_worker;
