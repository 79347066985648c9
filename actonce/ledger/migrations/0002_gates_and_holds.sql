-- Gates in the permit's transaction, and holds of a task that has no operation to hold.

ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS deadline timestamptz; -- nothing is sent for it afterwards

ALTER TABLE actonce.hold ALTER COLUMN destination DROP NOT NULL;
ALTER TABLE actonce.hold ALTER COLUMN action DROP NOT NULL;
ALTER TABLE actonce.hold ALTER COLUMN operation_id DROP NOT NULL;
ALTER TABLE actonce.hold ADD COLUMN IF NOT EXISTS step text; -- of the task, where it holds no operation
CREATE UNIQUE INDEX IF NOT EXISTS hold_task_open ON actonce.hold (task_id, step)
    WHERE closed_at IS NULL AND operation_id IS NULL;
