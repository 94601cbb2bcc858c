-- What a process saw committed and the server does not have, after a failover that lost it: nothing is sent until the data are
-- marked as after a restore, which renews the epoch.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE stream_epoch ADD COLUMN lost_tail text;
GRANT UPDATE (lost_tail) ON stream_epoch TO ti_worker, ti_service;
