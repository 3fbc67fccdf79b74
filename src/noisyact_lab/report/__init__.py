"""The report: one HTML page with tables, learning curves and pictures."""
