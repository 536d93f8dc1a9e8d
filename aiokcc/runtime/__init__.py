"""The runtime: sessions, election, gates, status: the core's decisions carried out over a store."""
