"""Names of code: functions, source lines and inlined frames."""
