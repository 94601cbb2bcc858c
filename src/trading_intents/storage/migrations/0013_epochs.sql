-- Who gave the log a new epoch, when, and why: every cursor from before leads nowhere since then.
CREATE TABLE stream_epoch_renewals (
    epoch uuid PRIMARY KEY,
    before uuid NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_by text NOT NULL,
    reason text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500)
);
GRANT SELECT, INSERT ON stream_epoch_renewals TO ti_worker;
GRANT UPDATE (epoch) ON stream_epoch TO ti_worker;
