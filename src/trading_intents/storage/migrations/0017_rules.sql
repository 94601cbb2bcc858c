-- What an organization's intents are decided by has a version: while it is the same, what was read before still holds.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
-- No foreign key: it would lock the organization, last of all, which others lock first.
CREATE TABLE rule_versions (
    organization_id uuid PRIMARY KEY,
    version bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50);
ALTER TABLE rule_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE rule_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY service ON rule_versions FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY worker ON rule_versions FOR SELECT TO ti_worker USING (true);
CREATE POLICY owner ON rule_versions TO ti_owner USING (true);
GRANT SELECT ON rule_versions TO ti_service, ti_worker;

CREATE FUNCTION count_rule_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed uuid;
BEGIN
    IF TG_TABLE_NAME = 'organizations' THEN
        changed := NEW.id;
    ELSIF TG_OP = 'DELETE' THEN
        changed := OLD.organization_id;
    ELSE
        changed := NEW.organization_id;
    END IF;
    INSERT INTO public.rule_versions AS r (organization_id) VALUES (changed)
    ON CONFLICT (organization_id) DO UPDATE SET version = r.version + 1
    WHERE r.xmin <> pg_current_xact_id()::xid;  -- once a transaction, whatever it changes
    RETURN NULL;
END
$$;

-- At the commit, so that nobody who holds one of these rows waits for anything else.
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON organization_controls
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON account_controls
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON symbol_controls
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON symbol_times
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();

-- A new one of these is not remembered by anyone, and not every column is a rule.
CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON organizations
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN ((OLD.entitlements, OLD.disabled) IS DISTINCT FROM (NEW.entitlements, NEW.disabled))
EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON api_keys
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN ((OLD.environment, OLD.permissions, OLD.disabled) IS DISTINCT FROM (NEW.environment, NEW.permissions, NEW.disabled))
EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_gone AFTER DELETE ON api_keys
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON accounts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (
    (OLD.environment, OLD.broker, OLD.disabled, OLD.closed_at, OLD.has_credential)
    IS DISTINCT FROM (NEW.environment, NEW.broker, NEW.disabled, NEW.closed_at, NEW.has_credential)
)
EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_gone AFTER DELETE ON accounts
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
