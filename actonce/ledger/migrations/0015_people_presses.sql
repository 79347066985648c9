-- People and tokens changed at a page: what was decided on something older is refused, the same press again is one token.

ALTER TABLE actonce.person ADD COLUMN IF NOT EXISTS version bigint NOT NULL DEFAULT 1; -- of what a person sees of it
ALTER TABLE actonce.token ADD COLUMN IF NOT EXISTS press text; -- chosen by the caller; NULL: it chose none
CREATE UNIQUE INDEX IF NOT EXISTS token_press ON actonce.token (press);

DO $$
BEGIN -- every change has this event already: from now on it tells the version that it made
    PERFORM actonce.audit_require('audit_person_changed', 'person', 'UPDATE',
        '(OLD.roles, OLD.disabled_at, OLD.password_hash) IS DISTINCT FROM (NEW.roles, NEW.disabled_at, NEW.password_hash)',
        'person.changed', '{name,changed_what,roles,disabled_at,changed_by,version}', NULL);
END $$;
