"""The vector engine: slots in supervised workers behind one shared block of memory.

Import from `polyarm`; this package stays light because the fork server is started from it.
"""
