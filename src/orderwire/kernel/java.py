"""Java, the one prerequisite beside Python: Spark and ZooKeeper run on it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from orderwire.kernel.errors import OrderwireError

JAVA_MAJOR_MIN = 17
JAVA_CHECK_SECONDS_MAX = 20


class JavaMissingError(OrderwireError):
    """What needs Java cannot run: there is none, or one that is too old."""


def find_java(user: str) -> tuple[str, int]:
    """Return the `java` to start and its major version; `user` is what needs it.

    JAVA_HOME comes before the PATH.  Raises JavaMissingError with what to install.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = (
        f"{user} needs Java {JAVA_MAJOR_MIN} or newer. Install it with "
        "`apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
        "`dnf install java-17-openjdk-headless` (Fedora) or `brew install openjdk@17` (macOS)"
    )
    if program is None:
        raise JavaMissingError(f"no `java` on the PATH and no JAVA_HOME. {hint}")
    try:
        told = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_CHECK_SECONDS_MAX,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError(f"{program} does not run ({error}). {hint}") from error
    major = java_major(told)
    if major is None:
        raise JavaMissingError(f"{program} -version told no version: {told.strip()!r}. {hint}")
    if major < JAVA_MAJOR_MIN:
        raise JavaMissingError(f"{program} is Java {major}. {hint}")
    return program, major


def java_major(told: str) -> int | None:
    """Read the major version out of what `java -version` prints; None when there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else None
