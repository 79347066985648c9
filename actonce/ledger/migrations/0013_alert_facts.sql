-- Firing and its end are audit events like every change of state: by trigger, so that nothing fires without one.
DO $$
BEGIN
    PERFORM actonce.audit_require('audit_alert_firing', 'alert', 'UPDATE',
        'OLD.state <> ''firing'' AND NEW.state = ''firing''', 'alert.firing',
        '{incident,reason,severity,value,summary,firings}', 'firings > 0');
    PERFORM actonce.audit_require('audit_alert_resolved', 'alert', 'UPDATE',
        'OLD.state = ''firing'' AND NEW.state = ''resolved''', 'alert.resolved', '{incident,firings}',
        'firings > 0 AND state <> ''firing''');
END $$;
