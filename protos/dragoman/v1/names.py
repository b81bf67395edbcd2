"""Names of the gRPC interface shared by client and server: service, methods and metadata keys."""

from dragoman.v1 import translation_pb2

_DESCRIPTOR = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"]

SERVICE: str = _DESCRIPTOR.full_name
METHODS: tuple[str, ...] = tuple(method.name for method in _DESCRIPTOR.methods)

AUTHORIZATION = "authorization"
"""Request metadata: `Bearer TOKEN`."""

DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata: a serialized google.rpc.Status."""

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata: delay before a retry, obeyed by gRPC's own retries (gRFC A6)."""
