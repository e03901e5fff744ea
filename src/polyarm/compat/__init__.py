"""polyarm behind the surfaces of other projects, so that their scripts run unchanged."""
