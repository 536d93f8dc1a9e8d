"""Runnable examples, one command each, in a checkout of the repository: ``python -m examples.NAME``.

* ``demo``: shows what the gate is for
* ``windowed_join``, ``month_again``, ``then_follow``, ``after_a_kill``: :func:`aiokcc.replay` on Kafka
* ``plain_asyncio``, ``own_consumer``: the gate alone, for records from any source
* ``first_pipeline``, ``orders_and_payments``, ``avro_orders``, ``balances``: :func:`aiokcc.spark.replay`
* ``nightly``, ``three_days``: pipelines that a scheduler starts; a published day is computed again
* ``deploy``, ``grafana``: files for a deployment and for a dashboard
"""
