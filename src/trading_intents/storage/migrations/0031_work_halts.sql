-- Halts that have work to do are walked through by id; who ends one removes its parts.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-creation, require-concurrent-index-deletion
DROP INDEX halts_unfinished;
CREATE INDEX halts_unfinished ON halts (id) WHERE resumed_at IS NULL AND state <> 'done';
GRANT DELETE ON halt_parts TO ti_service;
