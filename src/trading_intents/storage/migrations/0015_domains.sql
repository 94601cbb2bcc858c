-- Rules about one column as domains: a CHECK is read from its text again by every statement, a domain once a connection.
-- Each table is written anew, once, and its old rules are left out for as long as that takes.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, changing-column-type, ban-drop-constraint, ban-drop-function, constraint-missing-not-valid, ban-create-domain-with-constraint
CREATE DOMAIN seq_number AS bigint CONSTRAINT valid CHECK (VALUE > 0);
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
CREATE DOMAIN order_type AS text CONSTRAINT valid CHECK (VALUE IN ('MARKET', 'LIMIT', 'STOP', 'STOP_LIMIT'));
CREATE DOMAIN order_side AS text CONSTRAINT valid CHECK (VALUE IN ('BUY', 'SELL', 'SELL_SHORT'));
CREATE DOMAIN filled_amount AS numeric CONSTRAINT valid CHECK (VALUE >= 0);
-- squawk-ignore prefer-bigint-over-smallint
CREATE DOMAIN event_kind AS smallint CONSTRAINT valid CHECK (VALUE BETWEEN 1 AND 4);
CREATE DOMAIN outbox_queue AS text CONSTRAINT valid CHECK (VALUE IN ('accounts', 'intents', 'users'));
-- The accounts queue's events are these six; the other queues have names of their own.
CREATE DOMAIN outbox_event AS text CONSTRAINT valid CHECK (
    VALUE IN (
        'account.created', 'account.updated', 'account.deleted',
        'credential.created', 'credential.updated', 'credential.deleted'
    )
    OR NOT (VALUE LIKE 'account.%' OR VALUE LIKE 'credential.%')
);
CREATE DOMAIN outbox_status AS text CONSTRAINT valid CHECK (VALUE IN ('pending', 'processing', 'completed', 'failed'));
CREATE DOMAIN outbox_attempts AS bigint CONSTRAINT valid CHECK (VALUE BETWEEN 0 AND 1000);
CREATE DOMAIN outbox_payload AS jsonb CONSTRAINT valid CHECK (jsonb_typeof(VALUE) = 'object');
CREATE DOMAIN outbox_error AS text CONSTRAINT valid CHECK (char_length(VALUE) <= 500);

ALTER TABLE actions
    DROP CONSTRAINT actions_seq_check,
    DROP CONSTRAINT actions_action_type_check,
    DROP CONSTRAINT actions_idempotency_key_check,
    DROP CONSTRAINT actions_hash_check,
    ALTER COLUMN seq TYPE seq_number,
    ALTER COLUMN action_type TYPE action_type,
    ALTER COLUMN idempotency_key TYPE idempotency_key,
    ALTER COLUMN hash TYPE chain_hash;

ALTER TABLE orders
    DROP CONSTRAINT orders_order_status_check,
    DROP CONSTRAINT orders_order_type_check,
    DROP CONSTRAINT orders_order_side_check,
    DROP CONSTRAINT orders_quantity_check,
    DROP CONSTRAINT orders_limit_price_check,
    DROP CONSTRAINT orders_stop_price_check,
    DROP CONSTRAINT orders_filled_quantity_check,
    DROP CONSTRAINT orders_check,
    DROP CONSTRAINT orders_check1,
    ALTER COLUMN order_status TYPE order_status,
    ALTER COLUMN order_type TYPE order_type,
    ALTER COLUMN order_side TYPE order_side,
    ALTER COLUMN quantity TYPE amount,
    ALTER COLUMN limit_price TYPE amount,
    ALTER COLUMN stop_price TYPE amount,
    ALTER COLUMN filled_quantity TYPE filled_amount,
    ADD CONSTRAINT orders_prices_fit_type CHECK (
        (limit_price IS NOT NULL) = (order_type LIKE '%LIMIT') AND (stop_price IS NOT NULL) = (order_type LIKE 'STOP%')
    );

ALTER TABLE stream_events
    DROP CONSTRAINT stream_events_seq_check,
    DROP CONSTRAINT stream_events_environment_check,
    DROP CONSTRAINT stream_events_kind_check,
    ALTER COLUMN seq TYPE seq_number,
    ALTER COLUMN environment TYPE environment,
    ALTER COLUMN kind TYPE event_kind;

-- Both name columns whose types change.
DROP FUNCTION accounts_outbox_health();
DROP POLICY owner_reports ON outbox;
ALTER TABLE outbox
    DROP CONSTRAINT outbox_queue_check,
    DROP CONSTRAINT outbox_check,
    DROP CONSTRAINT outbox_check1,
    DROP CONSTRAINT outbox_payload_check,
    DROP CONSTRAINT outbox_status_check,
    DROP CONSTRAINT outbox_attempts_check,
    DROP CONSTRAINT outbox_last_error_check,
    DROP CONSTRAINT outbox_claim_is_processing,
    DROP CONSTRAINT outbox_end_is_final,
    ALTER COLUMN queue TYPE outbox_queue,
    ALTER COLUMN event_type TYPE outbox_event,
    ALTER COLUMN status TYPE outbox_status,
    ALTER COLUMN attempts TYPE outbox_attempts,
    ALTER COLUMN payload TYPE outbox_payload,
    ALTER COLUMN last_error TYPE outbox_error,
    ADD CONSTRAINT outbox_event_fits_queue CHECK (
        queue <> 'accounts' OR event_type LIKE 'account.%' OR event_type LIKE 'credential.%'
    ),
    ADD CONSTRAINT outbox_lane_is_for_intents CHECK ((lane IS NOT NULL) = (queue = 'intents')),
    ADD CONSTRAINT outbox_times_fit_status CHECK (
        (status = 'processing') = (claimed_at IS NOT NULL) AND (claimed_at IS NULL) = (claim_token IS NULL)
        AND (status = 'completed' OR status = 'failed') = (finished_at IS NOT NULL)
    );
CREATE POLICY owner_reports ON outbox FOR SELECT TO ti_owner USING (queue = 'accounts');
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
