"""Print which packages of this environment are newer than in constraints.txt."""

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"


def find_newer(constraints: str) -> list[str]:
    found = []
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    for pinned in map(Requirement, lines):
        if pinned.marker is not None and not pinned.marker.evaluate():
            continue
        (specifier,) = pinned.specifier
        try:
            installed = Version(metadata.version(pinned.name))
        except metadata.PackageNotFoundError:
            continue
        # A local version such as 2.13.0+cpu says how the package was built, not that it is newer.
        if Version(installed.public) > Version(specifier.version):
            found.append(f"{pinned.name} {specifier.version} -> {installed.public}")
    return found


if __name__ == "__main__":
    print(*find_newer(CONSTRAINTS.read_text()), sep="\n")
