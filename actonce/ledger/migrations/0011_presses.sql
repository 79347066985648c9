-- What a person pressed: the same press again is the same decision, and a cancellation has a name.

ALTER TABLE actonce.decision ADD COLUMN IF NOT EXISTS press text; -- chosen by the caller; NULL: it chose none
CREATE UNIQUE INDEX IF NOT EXISTS decision_press ON actonce.decision (tenant, destination, action, operation_id, press);

ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS cancel_by text;  -- NULL: nobody said who
ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS cancel_why text;

DO $$
BEGIN -- every cancelled task has this event already: from now on it tells more
    PERFORM actonce.audit_require('audit_task_cancel', 'task', 'UPDATE', 'NEW.cancel_requested AND NOT OLD.cancel_requested',
        'task.cancel_requested', '{task_id,cancel_by,cancel_why}', NULL);
END $$;
