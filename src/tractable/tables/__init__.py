"""Rows: in memory, on file, over devices; and the tables they come from."""
