-- The built-in paper broker is a market of its own: `environment` becomes a market, of which there is one more. Posted
-- prices count in both markets of environment paper. Whose trade or quote a price there was is not recorded: it is the
-- simulator's where the organization uses it, and stays another broker's where such an account has the symbol.
-- Processes of the version before go on as they did, and see no simulated prices.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, changing-column-type, ban-create-domain-with-constraint
CREATE DOMAIN price_market AS text CONSTRAINT valid CHECK (VALUE IN ('simulated', 'paper', 'live'));
ALTER TABLE reference_prices ALTER COLUMN environment TYPE price_market;
ALTER TABLE reference_prices NO FORCE ROW LEVEL SECURITY;
ALTER TABLE accounts NO FORCE ROW LEVEL SECURITY;
ALTER TABLE positions NO FORCE ROW LEVEL SECURITY;
INSERT INTO reference_prices (organization_id, environment, symbol, price, source, as_of)
SELECT organization_id, 'simulated', symbol, price, source, as_of FROM reference_prices r
WHERE environment = 'paper' AND (
    source = 'posted'
    OR EXISTS (SELECT FROM accounts a WHERE a.organization_id = r.organization_id AND a.broker = 'paper')
);
DELETE FROM reference_prices r
WHERE environment = 'paper' AND source <> 'posted' AND NOT EXISTS (
    SELECT FROM positions p JOIN accounts a ON a.id = p.account_id
    WHERE a.organization_id = r.organization_id AND a.environment = 'paper' AND a.broker <> 'paper' AND p.symbol = r.symbol
);
ALTER TABLE positions FORCE ROW LEVEL SECURITY;
ALTER TABLE accounts FORCE ROW LEVEL SECURITY;
ALTER TABLE reference_prices FORCE ROW LEVEL SECURITY;
