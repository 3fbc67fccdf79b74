"""The documentation's generated parts: tables, numbers and figures from the records, and the Sphinx extension."""
