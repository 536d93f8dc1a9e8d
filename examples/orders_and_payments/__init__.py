"""A pipeline on Spark: revenue by hour and country, from orders and the payments that come for them, some of them late."""
