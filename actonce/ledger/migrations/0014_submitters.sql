-- Who started a task, by the token it was started with: what its payload says of who asks is the submitter's own word.

ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS submitted_by text; -- NULL: a deployment's own token, which is nobody's

DO $$
BEGIN -- every task has this event already: from now on it tells more
    PERFORM actonce.audit_require('audit_task_accepted', 'task', 'INSERT', 'true', 'task.accepted',
        '{task_id,state,payload_digest,submitted_by}', NULL);
END $$;
