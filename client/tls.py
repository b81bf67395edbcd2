"""TLS settings of a client."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class Tls:
    """How the client authenticates the server, and itself to the server.

    Raises ValueError if only one of `certificate_file` and `key_file` is given.
    """

    ca_file: Path | None = None
    """PEM file of the authorities that may sign the server's certificate; None: those of gRPC."""
    certificate_file: Path | None = None
    """PEM file of the client's certificate, for mutual TLS."""
    key_file: Path | None = None
    """PEM file of the certificate's private key."""
    server_name: str = ""
    """Name that the server's certificate must have; empty: the host of its address."""

    def __post_init__(self) -> None:
        """Check that certificate and key come together."""
        if (self.certificate_file is None) != (self.key_file is None):
            missing = "certificate_file" if self.certificate_file is None else "key_file"
            raise ValueError(f"certificate_file and key_file go together, {missing} is not given")

    def credentials(self) -> grpc.ChannelCredentials:
        """Channel credentials from the files. Raises OSError that names a file that cannot be read."""
        return grpc.ssl_channel_credentials(_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))

    def options(self) -> list[tuple[str, str]]:
        """Channel arguments that these settings need."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
