-- What each task asked its memory, and in which memory this deployment remembers.

CREATE TABLE IF NOT EXISTS actonce.memory_use (
    task_id text NOT NULL,
    step    text NOT NULL,
    kind    text NOT NULL,                     -- recall, remember
    status  text NOT NULL,                     -- found, empty, remembered, unavailable
    trouble text,                              -- why it is unavailable
    words   text,
    items   integer,                           -- how many were found
    answer  jsonb,                             -- of a recall: a task asks once at a step, however often it is run
    waits   boolean NOT NULL,                  -- unavailable: the task waits for it, else it went on without
    looks   integer NOT NULL DEFAULT 1,
    since   timestamptz NOT NULL DEFAULT clock_timestamp(),
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, step)
);

-- Another memory, however healthy, knows nothing of what was remembered here: its `empty` would be false.
CREATE TABLE IF NOT EXISTS actonce.memory_pin (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    memory_id uuid NOT NULL,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['memory_use', 'memory_pin'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', name);
    END LOOP;
END $$;
