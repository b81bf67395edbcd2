"""The client's side of TLS."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class Tls:
    """How the server is told from others, and how it tells us. Raises ValueError if certificate or key is missing."""

    ca_file: Path | None = None
    """PEM file of the authorities that may have signed the server's certificate; None: those that gRPC brings."""
    certificate_file: Path | None = None
    """PEM file of our own certificate, for a server that wants one."""
    key_file: Path | None = None
    """PEM file of its key."""
    server_name: str = ""
    """The name that the server's certificate must have; empty: the host of its address."""

    def __post_init__(self) -> None:
        """Check what goes together."""
        if (self.certificate_file is None) != (self.key_file is None):
            missing = "certificate_file" if self.certificate_file is None else "key_file"
            raise ValueError(f"certificate_file and key_file go together, {missing} is not given")

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC makes of the files. Raises OSError that names one that cannot be read."""
        return grpc.ssl_channel_credentials(_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))

    def options(self) -> list[tuple[str, str]]:
        """Channel arguments."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
