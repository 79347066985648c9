-- Archive: of what has ended long ago the payloads go; ids, digests, outcomes and receipts stay, and no row is deleted.

ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS archived_at timestamptz;
ALTER TABLE actonce.operation ADD COLUMN IF NOT EXISTS archived_at timestamptz;

CREATE OR REPLACE FUNCTION actonce.payload_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'actonce: a payload in actonce.% goes only when what is final is archived, and never changes', TG_TABLE_NAME;
END $$;
-- `UPDATE OF`: a statement that does not name these columns pays nothing for it.
CREATE OR REPLACE TRIGGER payload_stays BEFORE UPDATE OF payload, archived_at ON actonce.operation FOR EACH ROW
    WHEN (NOT (OLD.archived_at IS NULL AND NEW.archived_at IS NOT NULL AND NEW.payload = '{}'
               AND OLD.state IN ('committed', 'refused', 'closed')))
    EXECUTE FUNCTION actonce.payload_stays();
CREATE OR REPLACE TRIGGER payload_stays BEFORE UPDATE OF payload, archived_at ON actonce.task FOR EACH ROW
    WHEN (NOT (OLD.archived_at IS NULL AND NEW.archived_at IS NOT NULL AND NEW.payload = '{}'
               AND OLD.state IN ('complete', 'failed', 'cancelled')))
    EXECUTE FUNCTION actonce.payload_stays();

DO $$
BEGIN
    PERFORM actonce.audit_require('audit_task_archived', 'task', 'UPDATE',
        'OLD.archived_at IS NULL AND NEW.archived_at IS NOT NULL', 'task.archived', '{task_id,archived_at}',
        'archived_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_operation_archived', 'operation', 'UPDATE',
        'OLD.archived_at IS NULL AND NEW.archived_at IS NOT NULL', 'operation.archived',
        '{operation_id,destination,action,archived_at}', 'archived_at IS NOT NULL');
END $$;
