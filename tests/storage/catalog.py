"""The public schema of a database as comparable lines, and which of its tables leave tenants
unprotected."""

from typing import Any

# One SELECT per kind of object: its name, then everything about it that a migration could get
# wrong.
CATALOG = """
    SELECT format('relation %s kind %s owner %s rls %s %s acl %s options %s view %s', c.relname,
        c.relkind,
                  c.relowner::regrole, c.relrowsecurity, c.relforcerowsecurity, c.relacl,
                  (SELECT array_agg(o ORDER BY o) FROM unnest(c.reloptions) o),
                  CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END)
    FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('column %s.%s %s null %s default %s identity %s generated %s acl %s', c.relname,
        a.attname,
                  format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
                      pg_get_expr(d.adbin, d.adrelid),
                  a.attidentity, a.attgenerated, a.attacl)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
        AND c.relkind <> 'i'
    UNION ALL
    SELECT format('constraint %s on %s %s', conname, conrelid::regclass, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('index %s', indexdef) FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL
    SELECT format('function %s owner %s acl %s', pg_get_functiondef(oid), proowner::regrole, proacl)
    FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')
    UNION ALL
    SELECT format('trigger %s enabled %s', pg_get_triggerdef(t.oid), t.tgenabled)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal
    UNION ALL
    SELECT format('policy %s on %s %s %s to %s using %s check %s', policyname, tablename,
        permissive, cmd, roles, qual,
                  with_check)
    FROM pg_policies WHERE schemaname = 'public'
    UNION ALL
    SELECT format('type %s kind %s of %s owner %s acl %s labels %s', typname, typtype,
        format_type(nullif(typbasetype, 0), typtypmod), typowner::regrole, typacl,
                  (SELECT array_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum
                      WHERE enumtypid = t.oid))
    FROM pg_type t WHERE typnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('sequence %s', to_jsonb(s) - 'last_value') FROM pg_sequences s
    WHERE schemaname = 'public'
    UNION ALL
    SELECT format('default %s %s %s %s', defaclrole::regrole, defaclnamespace::regnamespace,
        defaclobjtype, defaclacl)
    FROM pg_default_acl
    UNION ALL
    SELECT format('extension %s', extname) FROM pg_extension
"""

UNPROTECTED = """
    SELECT c.relname FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'organization_id'
        AND NOT a.attisdropped
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
      AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
    ORDER BY 1
"""


async def describe(connection: Any) -> set[str]:
    return {row[0] for row in await connection.fetch(CATALOG)}


async def unprotected_tables(connection: Any) -> list[str]:
    """Tables with an organization_id that do not force row-level security."""
    return [row[0] for row in await connection.fetch(UNPROTECTED)]
