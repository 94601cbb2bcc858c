-- The stream has two more kinds of events, BALANCE and HALT. Not validated: that would lock the events, and wider is
-- right for every row that there is.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, ban-drop-constraint, ban-alter-domain-with-add-constraint, ban-create-domain-with-constraint
ALTER DOMAIN event_kind DROP CONSTRAINT valid;
ALTER DOMAIN event_kind ADD CONSTRAINT valid CHECK (VALUE BETWEEN 1 AND 6) NOT VALID;

-- The newest price that an organization knows of a symbol in an environment, of all that is stored: a posted price, its
-- last trade, or what a broker told. The paper broker's quotes are not in it: they are read where they are.
CREATE DOMAIN price_source AS text CONSTRAINT valid CHECK (VALUE IN ('posted', 'trade', 'quote'));
CREATE TABLE reference_prices (
    organization_id uuid NOT NULL REFERENCES organizations,
    environment environment NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    price amount NOT NULL,
    source price_source NOT NULL,
    as_of timestamptz NOT NULL,
    PRIMARY KEY (organization_id, environment, symbol)
) WITH (fillfactor = 70);
ALTER TABLE reference_prices ENABLE ROW LEVEL SECURITY;
ALTER TABLE reference_prices FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON reference_prices TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON reference_prices TO ti_worker USING (true);
GRANT SELECT, INSERT ON reference_prices TO ti_service, ti_worker;
GRANT UPDATE (price, source, as_of) ON reference_prices TO ti_service, ti_worker;
