"""The ``polyarm`` command: one small file per subcommand. Only this room prints."""
