"""The views that the operator's tools show: a status, and rates. The command line and the dashboard draw the same view."""
