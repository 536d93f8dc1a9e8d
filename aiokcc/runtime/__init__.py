"""The runtime carries out the core's decisions over a store: sessions, election, gates, status."""
