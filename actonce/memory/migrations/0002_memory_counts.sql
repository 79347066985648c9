-- How much there must be is kept apart from the rows: tables that come back empty, or with a part of their rows (half a
-- restore), would else say that nothing is remembered. Counted by triggers, in the transaction of the rows.

ALTER TABLE actonce_memory.identity ADD COLUMN IF NOT EXISTS tenants bigint NOT NULL DEFAULT 0;
ALTER TABLE actonce_memory.tenant ADD COLUMN IF NOT EXISTS items bigint NOT NULL DEFAULT 0; -- with the canary

CREATE OR REPLACE FUNCTION actonce_memory.tenants_are_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE actonce_memory.identity SET tenants = tenants + (SELECT count(*) FROM added);
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION actonce_memory.items_are_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE actonce_memory.tenant t SET items = t.items + a.rows
      FROM (SELECT tenant, count(*) AS rows FROM added GROUP BY tenant) a WHERE a.tenant = t.tenant;
    RETURN NULL;
END $$;

-- A memory that was set up before: from now on it must hold what it holds today.
UPDATE actonce_memory.identity SET tenants = (SELECT count(*) FROM actonce_memory.tenant);
DO $$
BEGIN
    IF to_regclass('actonce_memory.item') IS NOT NULL THEN
        UPDATE actonce_memory.tenant t
           SET items = (SELECT count(*) FROM actonce_memory.item i WHERE i.tenant = t.tenant);
        CREATE OR REPLACE TRIGGER items_are_counted AFTER INSERT ON actonce_memory.item
            REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION actonce_memory.items_are_counted();
    END IF;
END $$;
CREATE OR REPLACE TRIGGER tenants_are_counted AFTER INSERT ON actonce_memory.tenant
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION actonce_memory.tenants_are_counted();
