"""The dashboard: a page that shows a group live."""
