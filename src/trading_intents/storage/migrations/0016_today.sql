-- Making today's partition no longer refuses an event that is being appended.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE OR REPLACE FUNCTION stream_keep_partitions(
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
            -- Today's events are on their way: one that was sent to the default partition before would be refused there.
            IF day = today AND to_regclass('public.' || name) IS NULL THEN
                BEGIN
                    LOCK TABLE public.stream_events IN SHARE ROW EXCLUSIVE MODE;
                EXCEPTION WHEN lock_not_available THEN
                    late := true;
                    CONTINUE;
                END;
            END IF;
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
