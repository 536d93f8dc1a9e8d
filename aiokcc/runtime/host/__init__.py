"""The processes of one host share one session with the store and one report (docs/explanation/host-sharing.md)."""
