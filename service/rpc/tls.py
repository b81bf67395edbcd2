"""TLS credentials of the server, from files that may be replaced while it runs."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from dragoman.service.errors import StartupError
from dragoman.service.settings import ServerSettings
from dragoman.service.system.file_watch import WatchedFiles


@dataclass(frozen=True)
class TlsFiles:
    """Paths of the PEM files."""

    certificate: Path
    """The server's certificate, followed by any intermediate certificates."""
    key: Path
    """The certificate's private key, unencrypted."""
    client_ca: Path | None
    """Certificate authorities for client certificates; None: callers need no certificate."""

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that must exist."""
        return (self.certificate, self.key, *((self.client_ca,) if self.client_ca else ()))


def tls_files(settings: ServerSettings) -> TlsFiles | None:
    """The files named by `settings`; None without TLS. Raises StartupError if certificate or key is not set."""
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if not (certificate or key or client_ca):
        return None
    if not (certificate and key):
        missing = "tls_key" if certificate else "tls_certificate"
        raise StartupError(f"TLS needs both tls_certificate and tls_key; {missing} is not set")
    return TlsFiles(Path(certificate), Path(key), Path(client_ca) if client_ca else None)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that check `files` for changes before each handshake. Raises StartupError that names the fault."""
    try:
        watched = WatchedFiles("TLS certificates", files.all, lambda: _read(files))
    except (OSError, ValueError) as error:
        raise StartupError(f"TLS: {error}") from error
    return grpc.dynamic_ssl_server_credentials(
        watched.current(), watched.current, require_client_authentication=files.client_ca is not None
    )


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    """gRPC's configuration from `files`. Raises OSError or ValueError that names a file."""
    _check(files)
    chain = files.certificate.read_bytes()
    authorities = files.client_ca.read_bytes() if files.client_ca else None
    return grpc.ssl_server_certificate_configuration([(files.key.read_bytes(), chain)], authorities)


def _check(files: TlsFiles) -> None:
    # gRPC accepts a key that does not match, and then fails each handshake.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in files.all:
        path.read_bytes()
    try:
        # Given no password, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except ssl.SSLError as error:
        raise ValueError(f"{files.certificate} and {files.key} are not a certificate and its key: {error}") from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise ValueError(f"{files.client_ca} holds no valid certificate: {error}") from error
