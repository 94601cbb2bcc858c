-- A key may end. It is refused like a disabled one from then on, so the end is a rule that writers cache.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE api_keys ADD COLUMN expires_at timestamptz;
DROP TRIGGER rules_changed ON api_keys;
CREATE CONSTRAINT TRIGGER rules_changed AFTER UPDATE ON api_keys
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (
    (OLD.environment, OLD.permissions, OLD.disabled, OLD.expires_at)
    IS DISTINCT FROM (NEW.environment, NEW.permissions, NEW.disabled, NEW.expires_at)
)
EXECUTE FUNCTION count_rule_change();
