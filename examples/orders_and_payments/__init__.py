"""A Spark pipeline: revenue by hour and country, from orders and their payments, some of them late."""
