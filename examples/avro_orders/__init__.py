"""Orders in Avro, with a Schema Registry and headers, on Spark."""
