"""``aiokcc config``: shows which configuration is in force, and where each part of it comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, Final

from aiokcc.cli.configuration import PROFILE
from aiokcc.cli.defaults import Default
from aiokcc.cli.kafka_options import KAFKA_ARGUMENTS, load_kafka
from aiokcc.cli.verb import SERVERS, StoreUse, Verb, argument
from aiokcc.core.masking import HIDDEN, is_secret, mask_url
from aiokcc.credentials import KafkaClient, is_reference
from aiokcc.credentials.properties_file import read_properties
from aiokcc.stores.zookeeper.url import parse_url

__all__ = ["VERB"]


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for what is wrong in Kafka's properties, and in the files that they name."""
    load_kafka(options)


async def _run(options: argparse.Namespace) -> int:
    """Print what is in force. All files were read and checked before; what is wrong with them is an error."""
    client = load_kafka(options)
    shown = _collect(options, client)
    if options.json:
        print(json.dumps(shown, indent=2))
        return 0
    _print_part("profile", shown["profile"], "none is in force; see aiokcc config --help")
    _print_part("store", shown["store"], "none: give its URL, AIOKCC_STORE, or a profile")
    _print_part("kafka", shown["kafka"], "no client properties; connects without TLS and credentials")
    _print_part("defaults", shown["defaults"], "none")
    return 0


def _collect(options: argparse.Namespace, client: KafkaClient) -> dict[str, Any]:
    profile = options.profile_in_force
    name_origin = "--profile" if options.profile else f"${PROFILE} or the file"
    return {
        "profile": None if profile is None else {"name": profile.name, "file": str(profile.file), "from": name_origin},
        "store": None if not options.store else {**_store(options.store), "from": options.store_origin},
        "kafka": _kafka(options, client),
        "defaults": {
            default.option: {"value": _masked_words(default), "from": default.origin}
            for default in options.defaults_in_force
        },
    }


def _store(url: str) -> dict[str, str]:
    base, mark, _ = url.partition("?")
    options = parse_url(url).options if mark else {}
    return {"url": mask_url(base), **{name: _masked(name, value) for name, value in options.items()}}


def _kafka(options: argparse.Namespace, client: KafkaClient) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    if options.bootstrap_servers:
        found["bootstrap.servers"] = mask_url(options.bootstrap_servers)
    if options.kafka is not None:
        properties: Mapping[str, str] = (
            read_properties(options.kafka, options.kafka_origin) if isinstance(options.kafka, str) else options.kafka
        )
        used = {name: value for name, value in properties.items() if name not in client.ignored}
        found = {name: _masked(name, value) for name, value in used.items()} | found
        found["from"] = options.kafka_origin + (f" {options.kafka}" if isinstance(options.kafka, str) else "")
    if client.ignored:
        found["not used"] = ", ".join(client.ignored)
    found |= {name: HIDDEN if is_secret(name) else value for name, value in options.consumer}
    return found or None


def _masked(name: str, value: str) -> str:
    """Return the value as it may be shown: where a secret is found, but never the secret itself."""
    if is_reference(value) or name.endswith(".location") or name in {"ca", "cert", "key"}:
        return value
    if "-----BEGIN" in value:
        return "(PEM)"
    return HIDDEN if is_secret(name) else mask_url(value) if "@" in value else value


def _masked_words(default: Default) -> str:
    if default.words in {(), (default.option,)}:  # a flag
        return "true" if default.words else "false"
    values = [word.partition("=")[2] for word in default.words]
    named = [
        (value.partition("=")[0] if "=" in value else default.option.removeprefix("--"), value) for value in values
    ]
    return ", ".join(_masked(name, value) for name, value in named)


def _print_part(title: str, part: Mapping[str, Any] | None, otherwise: str) -> None:
    if not part:
        print(f"{title}: {otherwise}")
        return
    origin = f" (from {part['from']})" if "from" in part else ""
    print(f"{title}:{origin}")
    for name, value in part.items():
        if isinstance(value, Mapping):
            print(f"  {name} {value['value']} (from {value['from']})")
        elif name != "from":
            print(f"  {name} = {value}")


VERB: Final = Verb(
    name="config",
    brief="show which configuration is in force, and from where",
    usage="[URL] [--profile NAME] [--kafka-config FILE] [--json]",
    arguments=(argument("--json", action="store_true", help="print one JSON object"), *KAFKA_ARGUMENTS),
    check=_check,
    run=_run,
    store=StoreUse.SHOWN,
    description=f"""\
Show which store, which Kafka properties and which defaults are in force, and
where each comes from. Secrets are not shown. Every file is read and checked;
no server is asked. Exit code 2 if something is wrong.

What counts first: what is typed, then environment variables (AIOKCC_STORE,
{SERVERS}, AIOKCC_KAFKA_CONFIG, and AIOKCC_PERIOD for
--period, and so on), then the profile.
""",
    epilog="""\
aiokcc.toml, in the current directory or in ~/.config/aiokcc:
  profile = "production"            # if --profile is not given

  [profiles.production.store]
  url = "zks://zk1:2281,zk2:2281/replay"
  ca = "ca.pem"                     # relative to this file
  auth = "env:ZK_AUTH"              # user:password, in a variable or file:PATH
  acl = "creator"

  [profiles.production.kafka]       # or: kafka = "client.properties"
  bootstrap.servers = "k1:9093,k2:9093"
  security.protocol = "SASL_SSL"
  ssl.ca.location = "ca.pem"
  sasl.mechanism = "SCRAM-SHA-512"
  sasl.username = "replay"
  sasl.password = "file:/run/secrets/kafka"

  [profiles.production.defaults]    # options of all verbs that have them
  period = "1m"
  timeout = "30s"

examples:
  aiokcc config
  aiokcc config --profile production
  aiokcc config --kafka-config client.properties --json
""",
)
