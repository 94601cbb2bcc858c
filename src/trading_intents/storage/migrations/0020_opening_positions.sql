-- Positions have an opening: what the account held before our first trade. broker_quantity is what the broker last
-- reported, and differs whether it does not agree with our quantity.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE positions ADD COLUMN opening_quantity numeric NOT NULL DEFAULT 0;
ALTER TABLE positions ADD COLUMN opening_price numeric;
ALTER TABLE positions ADD COLUMN opening_cost numeric NOT NULL DEFAULT 0;
ALTER TABLE positions ADD COLUMN uncosted_quantity numeric NOT NULL DEFAULT 0;
ALTER TABLE positions ADD COLUMN differs boolean NOT NULL DEFAULT false;

-- Accounts whose openings are set, which happens once, by the first snapshot that tells positions.
CREATE TABLE position_openings (
    account_id uuid PRIMARY KEY,
    organization_id uuid NOT NULL,
    opened_at timestamptz NOT NULL
);
ALTER TABLE position_openings ENABLE ROW LEVEL SECURITY;
ALTER TABLE position_openings FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON position_openings FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON position_openings TO ti_worker USING (true);
GRANT SELECT ON position_openings TO ti_service;
GRANT SELECT, INSERT ON position_openings TO ti_worker;

-- Reports of nothing made positions of symbols that were never traded, and a venue's clock made days that are to come.
ALTER TABLE positions NO FORCE ROW LEVEL SECURITY;
DELETE FROM positions
WHERE quantity = 0 AND value_bought = 0 AND value_sold = 0 AND fees = 0 AND coalesce(broker_quantity, 0) = 0;
UPDATE positions SET day = NULL, day_pnl = 0 WHERE day > (clock_timestamp() AT TIME ZONE 'UTC')::date;
ALTER TABLE positions FORCE ROW LEVEL SECURITY;
