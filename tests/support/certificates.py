"""Test authorities and certificates, made by the command openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


def make_pair(folder: Path, name: str, authority: Pair | None = None) -> Pair:
    """A certificate for 127.0.0.1 and `name`.test, signed by `authority` or by itself."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "3", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:127.0.0.1,DNS:{name}.test"]
    if authority is not None:
        command += ["-CA", str(authority.certificate), "-CAkey", str(authority.key)]
    command += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return pair
