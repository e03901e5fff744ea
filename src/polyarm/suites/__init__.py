"""Suites: one file per simulator, each imported only when one of its tasks is asked for."""
