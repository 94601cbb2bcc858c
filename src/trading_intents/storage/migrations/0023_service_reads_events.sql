-- The stream is served by the service's role, which reads the events of the organizations that its transaction names: a
-- process without the role `worker` needs no login that may read sealed secrets.
-- Submits wait behind this lock, so not for longer than they may.
SET LOCAL lock_timeout = '1s';
SET LOCAL statement_timeout = '2s';
CREATE POLICY service_reads ON stream_events FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
GRANT SELECT ON stream_events TO ti_service;
GRANT SELECT ON stream_epoch TO ti_service;
