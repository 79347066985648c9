-- The memory's own records. The collection itself (table `item`, with the embedder's dimension, and its index) is made
-- together with the identity row and never again: a collection that was lost must not come back empty by itself.

CREATE SCHEMA IF NOT EXISTS actonce_memory;

CREATE TABLE IF NOT EXISTS actonce_memory.identity (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    memory_id  uuid NOT NULL,
    embedder   text NOT NULL,     -- what embedded everything in the collection
    dimension  integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Each tenant has a canary in the collection; what it must say is kept apart from it.
CREATE TABLE IF NOT EXISTS actonce_memory.tenant (
    tenant text PRIMARY KEY,
    canary uuid NOT NULL,
    since  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE FUNCTION actonce_memory.nothing_is_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'actonce: rows of %.% are never deleted', TG_TABLE_SCHEMA, TG_TABLE_NAME;
END $$;
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce_memory.identity
    FOR EACH STATEMENT EXECUTE FUNCTION actonce_memory.nothing_is_deleted();
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce_memory.tenant
    FOR EACH STATEMENT EXECUTE FUNCTION actonce_memory.nothing_is_deleted();
