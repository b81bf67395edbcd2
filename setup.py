"""Maps the top-level folders to one namespace, `dragoman`, and generates the gRPC code.

All other metadata is in pyproject.toml.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PARTS = ("bundle", "model", "export", "client", "service")
PROTOS = Path("protos")


class BuildWithProtos(build_py):
    """Generates the gRPC code beside each .proto before packages are collected."""

    def run(self) -> None:
        from grpc_tools import protoc

        sources = [str(path) for path in sorted(PROTOS.rglob("*.proto"))]
        outputs = [f"--{kind}_out={PROTOS}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
        if protoc.main(["protoc", f"-I{PROTOS}", *outputs, *sources]):
            raise SystemExit("protoc failed")
        super().run()


found = [name for part in PARTS for name in (part, *(f"{part}.{child}" for child in find_packages(part)))]
package_dir = {f"dragoman.{name}": name.replace(".", "/") for name in found}
package_dir["dragoman.v1"] = str(PROTOS / "dragoman" / "v1")

setup(packages=sorted(package_dir), package_dir=package_dir, cmdclass={"build_py": BuildWithProtos})
