"""The sessions of this project: ``nox`` runs the checks and all tests, ``nox -s NAME`` one of them, ``nox -l`` lists them.

What follows ``--`` goes to the program a session runs: ``nox -s integration -- -k ensemble``.

The environments are made here and not by nox, for two reasons. pyspark alone has 400 MB, so all sessions that need services
share one. And an environment is installed only if what it is made from has changed: pyproject.toml, constraints.txt or the
list of requirements. The package itself is installed in editable form, so a change in the code needs no installation.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typecheck", "tests", "integration", "uvloop", "chaos"]
nox.options.default_venv_backend = "none"

ROOT = Path(__file__).parent
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
TWO_AT_A_TIME = ["-n", "2", "--dist", "loadfile"]
"""Much of a test's time is waiting for a service. Each worker starts services of its own."""
VERSIONS = sorted({"3.11", "3.12", "3.13", "3.14", HERE}, key=lambda version: int(version.split(".")[1]))


# Checks


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, and the layers."""
    python = environment(session, "lint", extras=["cli", "kafka", "dashboard"], groups=["lint", "test"])
    run(session, python, "-m", "ruff", "check", ".")
    run(session, python, "-m", "ruff", "format", "--check", ".")
    run(session, str(Path(python).with_name("lint-imports")))


@nox.session
def typecheck(session: nox.Session) -> None:
    """Mypy: strict for the package, and the same for what stands around it but for functions without annotations."""
    python = environment(session, "lint", extras=["cli", "kafka", "dashboard"], groups=["lint", "test"])
    run(session, python, "-m", "mypy", "--strict", "aiokcc")
    lax = [
        "--allow-untyped-defs",
        "--allow-incomplete-defs",
        "--allow-untyped-calls",
        "--allow-any-generics",
        "--no-warn-unused-ignores",
        "--disable-error-code=func-returns-value",
        "--disable-error-code=method-assign",
        "--disable-error-code=abstract",
        "--disable-error-code=misc",
        "--disable-error-code=comparison-overlap",  # it does not know that a call may change a state
    ]
    around = [name for name in ("tests", "benchmarks", "examples") if any((ROOT / name).glob("**/*.py"))]
    run(session, python, "-m", "mypy", *lax, "--disable-error-code=import-not-found", *around)


# Tests


@nox.session
@nox.parametrize("version", [nox.param(version, id=version) for version in VERSIONS])
def tests(session: nox.Session, version: str) -> None:
    """Unit and property tests: memory store, virtual time; on every supported Python that is there."""
    interpreter = find_python(version)
    if interpreter is None:
        session.skip(f"Python {version} is not on this machine")
    python = environment(
        session,
        f"tests-{version}",
        extras=["cli", "kafka", "uvloop", "dashboard"],
        groups=["test"],
        interpreter=interpreter,
    )
    run(session, python, "-m", "pytest", *TWO_AT_A_TIME, *(session.posargs or ["tests/unit", "tests/property"]))


@nox.session
def integration(session: nox.Session) -> None:
    """The conformance suite of the stores, and everything else that talks to real services."""
    python = services(session)
    chosen = ["-m", "not long", "tests/conformance", "tests/integration"]
    run(session, python, "-m", "pytest", *TWO_AT_A_TIME, *chosen, *session.posargs)


@nox.session
def uvloop(session: nox.Session) -> None:
    """What touches the event loop, on uvloop; with folders after ``--``, all tests of these folders."""
    on_services = ["tests/integration/test_gate.py", "tests/integration/kafka/test_replay.py"]
    chosen = ["tests/unit/stores", "tests/unit/cli", "tests/unit/test_faults.py", *on_services]
    # On uvloop a signal does not interrupt a test that hangs: a thread ends the process and shows where it stood.
    options = ["--loop", "uvloop", "-o", "timeout_method=thread"]
    run(session, services(session), "-m", "pytest", *TWO_AT_A_TIME, *options, *(session.posargs or chosen))


@nox.session
def chaos(session: nox.Session) -> None:
    """Faults on real services, with the recorded histories checked."""
    python = services(session)
    chosen = ["-n", "2", "--dist", "worksteal", "-m", "not long", "tests/chaos"]
    run(session, python, "-m", "pytest", *chosen, *session.posargs)


@nox.session(default=False)
def long(session: nox.Session) -> None:
    """Integration and chaos tests that take long and rarely tell more than the others."""
    chosen = ["-m", "long", "tests/integration", "tests/chaos"]
    run(session, services(session), "-m", "pytest", *TWO_AT_A_TIME, *chosen, *session.posargs)


# To look at


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run a benchmark: ``nox -s bench -- period-latency --quick``; without arguments, list them."""
    run(session, services(session), "-m", "benchmarks", *session.posargs)


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Start what is needed and show the gate at work."""
    run(session, services(session), "-m", "examples.demo", *session.posargs)


# Environments


def services(session: nox.Session) -> str:
    """Return the Python of the one environment that has everything."""
    return environment(
        session, "services", extras=["all"], groups=["test", "bench", "tables", "connect", "browser", "deploy"]
    )


def environment(
    session: nox.Session,
    name: str,
    *,
    extras: list[str] | None = None,
    groups: list[str],
    interpreter: str = sys.executable,
) -> str:
    """Make or renew an environment and return its Python."""
    place = Path(session.cache_dir).parent / f"env-{name}"
    python, stamp = place / "bin" / "python", place / "made-from"
    wanted = nox.project.dependency_groups(nox.project.load_toml(ROOT / "pyproject.toml"), *groups)
    package = f".[{','.join(extras)}]" if extras else "."
    made_from = "\n".join([interpreter, package, *wanted, _digest("pyproject.toml"), _digest("constraints.txt")])
    if python.exists() and stamp.exists() and stamp.read_text() == made_from:
        return str(python)
    session.log(f"making the environment {name}, which takes a moment the first time")
    # virtualenv comes with nox and works where a Python lacks the parts for `-m venv`.
    run(session, sys.executable, "-m", "virtualenv", "--quiet", "--clear", "--python", interpreter, str(place))
    # As variables, because they reach the environment in which the package is built as well.
    locked = {"PIP_CONSTRAINT": "constraints.txt", "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    run(
        session,
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-e",
        package,
        *wanted,
        env=locked,
    )
    stamp.write_text(made_from)
    return str(python)


def run(session: nox.Session, *command: str, env: dict[str, str] | None = None) -> None:
    session.run(*command, external=True, env=env)


def _digest(name: str) -> str:
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


@functools.cache
def find_python(version: str) -> str | None:
    """Return a Python of this version that runs: the one we run on, of the PATH, or one that pyenv holds."""
    if version == HERE:
        return sys.executable
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(path) for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))]
    for candidate in filter(None, candidates):
        # Run it: what stands on the PATH may be a placeholder for a version that is not chosen.
        ask = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(ask, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    return None
