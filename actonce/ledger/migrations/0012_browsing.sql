-- What people look through: lists newest first, and what is searched for. Nothing here is needed to act.

CREATE INDEX IF NOT EXISTS task_newest ON actonce.task (created_at, task_id);
CREATE INDEX IF NOT EXISTS task_ended ON actonce.task (state, created_at, task_id)
    WHERE state IN ('failed', 'cancelled'); -- rare among many that are complete
CREATE INDEX IF NOT EXISTS task_by_key ON actonce.task (task_key);
CREATE INDEX IF NOT EXISTS task_customer ON actonce.task ((payload ->> 'customer'))
    WHERE payload ->> 'customer' IS NOT NULL;

CREATE INDEX IF NOT EXISTS operation_newest ON actonce.operation (created_at, operation_id);
CREATE INDEX IF NOT EXISTS operation_ended ON actonce.operation (state, created_at) WHERE state IN ('refused', 'closed');
CREATE INDEX IF NOT EXISTS operation_reason ON actonce.operation (reason, created_at) WHERE reason IS NOT NULL;
CREATE INDEX IF NOT EXISTS operation_object ON actonce.operation (object_id) WHERE object_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS operation_by_natural_key ON actonce.operation (natural_key) WHERE natural_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS acknowledgement_object ON actonce.acknowledgement (object_id);

CREATE INDEX IF NOT EXISTS hold_task ON actonce.hold (task_id);
CREATE INDEX IF NOT EXISTS hold_operation ON actonce.hold (operation_id) WHERE operation_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS page_task ON actonce.page (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS page_operation ON actonce.page (operation_id) WHERE operation_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS approval_newest ON actonce.approval (proposed_at, approval_id);

CREATE INDEX IF NOT EXISTS audit_of_task ON actonce.audit (task_id, audit_id) WHERE task_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_kind ON actonce.audit (kind COLLATE "C", audit_id);
CREATE INDEX IF NOT EXISTS audit_of_operation ON actonce.audit (operation_id, audit_id) WHERE operation_id IS NOT NULL;
