"""The report: one HTML page of tables, curves and pictures."""
