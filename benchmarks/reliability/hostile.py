"""Hostile messages for the fuzz test of the gRPC surface.

The generator knows the schema, so that many messages are nearly valid and pass the parser. Others are bytes that no
client would send.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from dragoman.v1 import translation_pb2 as pb

SERVICE = "/dragoman.v1.TranslationService"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"

METHODS: dict[str, type[Message]] = {
    f"{SERVICE}/Translate": pb.TranslateRequest,
    f"{SERVICE}/Embed": pb.EmbedRequest,
    f"{SERVICE}/GetInfo": pb.GetInfoRequest,
    "/grpc.health.v1.Health/Check": health_pb2.HealthCheckRequest,
    WATCH: health_pb2.HealthCheckRequest,
    REFLECTION: reflection_pb2.ServerReflectionRequest,
}

METHOD_WEIGHTS = {
    f"{SERVICE}/Translate": 40,
    f"{SERVICE}/Embed": 25,
    f"{SERVICE}/GetInfo": 5,
    "/grpc.health.v1.Health/Check": 10,
    WATCH: 5,
    REFLECTION: 10,
}
UNKNOWN_METHODS = 5
"""The weight of methods that do not exist."""

# fmt: off
WORDS = (
    "", " ", "kite", "the red boat", "The cat sat on the mat.", "</s>", "<pad>", "<unk>", "▁</s>", "\x00", "a\x00b",
    "\r\n\t", "\u202e\u2066x", "\ufeff", "\u200b" * 9, "e\u0301" * 9, "𝄞🙂👩‍👩‍👧", "中文", "ﷺ" * 5, "ﬁ½①…", "zz" * 300,
    "x" * 1500, "%s%n{0}", "../../etc/passwd", "fr", "en", "en-fr", "fra_Latn", "fr-CA", "EN_us", "x-klingon", "und",
    "dragoman.v1.TranslationService", "dragoman.v1.TranslateRequest", "google.protobuf.FileOptions",
    "dragoman/v1/translation.proto", "grpc.health.v1.Health", "nan", "-1", "1e999",
)
# fmt: on
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 64, 127, 128, 1000, 2**31 - 1, -1, -(2**31))
BYTES = (0x00, 0x01, 0x0A, 0x12, 0x7F, 0x80, 0xC0, 0xED, 0xFE, 0xFF)
METADATA_KEYS = ("x-request", "traceparent", "tracestate", "authorization", "x-" + "k" * 200, "a.b_c-d", "x-bin")
ODD_METADATA = 0.1
"""Share of calls with metadata."""
NO_MESSAGE = 0.01
"""Share of calls without a message."""

MAX_OUTPUT_TOKENS = 4
"""Output limit of most valid messages, to keep the fuzz cheap for the model."""

Bytes = Callable[[random.Random, type[Message]], bytes]


@dataclass(frozen=True)
class Shot:
    """One call."""

    kind: str
    """Mutation of its messages."""
    method: str
    messages: tuple[bytes, ...]
    """One message; several for a streaming method, or none."""
    metadata: tuple[tuple[str, str | bytes], ...]


def shot(rng: random.Random) -> Shot:
    """Draw a call."""
    method = rng.choices([*METHOD_WEIGHTS, ""], [*METHOD_WEIGHTS.values(), UNKNOWN_METHODS])[0]
    schema = METHODS.get(method, pb.TranslateRequest)
    kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    make = KINDS[kind][1]
    count = rng.randint(1, 3) if method == REFLECTION else 1
    messages = tuple(make(rng, schema) for _ in range(count if rng.random() > NO_MESSAGE else 0))
    return Shot(kind, method or unknown_method(rng), messages, metadata(rng))


def unknown_method(rng: random.Random) -> str:
    """A path that no server has."""
    service = rng.choice((SERVICE, "/grpc.health.v1.Health", "/", "//", "/" + "x" * 500, "/%2e%2e/a", "/nope.Service"))
    return f"{service}/{rng.choice(('', 'translate', 'Translate/', 'List', 'x' * rng.randint(1, 300)))}"


def metadata(rng: random.Random) -> tuple[tuple[str, str | bytes], ...]:
    """Random metadata, usually empty."""
    if rng.random() > ODD_METADATA:
        return ()
    found: list[tuple[str, str | bytes]] = []
    for key in rng.sample(METADATA_KEYS, rng.randint(1, 4)):
        size = 20_000 if rng.random() < 0.02 else rng.randint(0, 60)
        if key.endswith("-bin"):
            found.append((key, rng.randbytes(size)))
        else:
            found.append((key, "".join(chr(rng.randint(0x20, 0x7E)) for _ in range(size)).strip()))
    return tuple(found)


# --- messages


def filled(rng: random.Random, schema: type[Message]) -> Any:
    """A message of any values, with about half of its fields."""
    message: Any = schema()
    for field in schema.DESCRIPTOR.fields:
        if rng.random() < 0.5 or field.name == "texts":
            _fill(rng, message, field)
    own = issubclass(schema, pb.TranslateRequest | pb.EmbedRequest)
    if own and rng.random() < 0.7:
        for name in ("model", "source_language", "target_language", "pooling"):
            if name in schema.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
        if schema is pb.TranslateRequest:
            message.max_output_tokens = rng.randint(0, MAX_OUTPUT_TOKENS) or rng.choice(NUMBERS)
    return message


def _fill(rng: random.Random, message: Any, field: Any) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        part = getattr(message, field.name)
        part.SetInParent()
        for inner in field.message_type.fields:
            _fill(rng, part, inner)
        return
    if field.name == "texts":
        message.texts.extend(rng.choice(WORDS) for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 9))))
        return
    value: Any = rng.choice(WORDS)
    if field.type == FieldDescriptor.TYPE_BOOL:
        value = rng.random() < 0.5
    elif field.type in (FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_INT32):
        value = rng.choice(NUMBERS)
    setattr(message, field.name, value)


def valid(rng: random.Random, schema: type[Message]) -> bytes:
    """Correctly encoded message of random values."""
    written: bytes = filled(rng, schema).SerializeToString()
    return written


def mutated(rng: random.Random, schema: type[Message]) -> bytes:
    """Valid message with bytes changed, removed or repeated."""
    message = bytearray(valid(rng, schema))
    for _ in range(rng.randint(1, 6)):
        place = rng.randint(0, len(message))
        end = min(len(message), place + rng.randint(1, 8))
        match rng.randrange(5):
            case 0:
                message[place:end] = rng.randbytes(end - place)
            case 1:
                del message[place:end]
            case 2:
                message[place:place] = message[place:end]
            case 3:
                message[place:place] = bytes([rng.choice(BYTES)]) * rng.randint(1, 4)
            case _:
                for bit in range(place, min(len(message), place + 1)):
                    message[bit] ^= 1 << rng.randrange(8)
    return bytes(message)


def wire(rng: random.Random, schema: type[Message]) -> bytes:
    """Fields of any number and type, some of them longer than the message."""
    found = bytearray()
    for _ in range(rng.randint(1, 8)):
        number = rng.choice((rng.randint(0, 9), rng.randint(1, 9), rng.randint(10, 10**5), 2**29 - 1, 2**29))
        found += varint(number << 3 | rng.randrange(8))
        found += rng.choice((varint(rng.getrandbits(rng.randint(1, 70))), rng.randbytes(rng.randint(0, 12)), b""))
        if rng.random() < 0.3:
            body = rng.randbytes(rng.randint(0, 20))
            found += varint(rng.choice((len(body), len(body) + 1, 2**31, 2**32 - 1, 2**63))) + body
    return bytes(found)


def huge_varints(rng: random.Random, schema: type[Message]) -> bytes:
    """Numbers that go on too long, in the place of any field."""
    return varint(rng.randint(1, 9) << 3) + b"\xff" * rng.randint(5, 30) + bytes([rng.choice((0x00, 0x01, 0x7F))])


def nested(rng: random.Random, schema: type[Message]) -> bytes:
    """Groups or messages in each other, deeper than a parser likes, closed or not."""
    depth, number = rng.choice((10, 99, 100, 101, 1000, 5000)), rng.randint(1, 20)
    if rng.random() < 0.5:
        closed = depth if rng.random() < 0.5 else rng.randint(0, depth)
        return varint(number << 3 | 3) * depth + varint(number << 3 | 4) * closed
    found = b""
    for _ in range(min(depth, 1000)):
        found = varint(number << 3 | 2) + varint(len(found)) + found
    return found


def not_utf8(rng: random.Random, schema: type[Message]) -> bytes:
    """Text fields that hold no text."""
    broken = (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"kite\xe2\x82", b"\x80")
    found = b""
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(WORDS).encode() + rng.choice(broken)
        found += varint(rng.choice((1, 1, 2, 3, 4, 7)) << 3 | 2) + varint(len(text)) + text
    return found


def raw(rng: random.Random, schema: type[Message]) -> bytes:
    """Random bytes."""
    return rng.randbytes(rng.choice((0, 1, 2, rng.randint(3, 300))))


def many(rng: random.Random, schema: type[Message]) -> bytes:
    """Message beyond one of the server's limits."""
    match rng.randrange(4):
        case 0:
            return b"\x0a\x00" * rng.choice((1025, 20_000))
        case 1:
            return b"\x0a\x04kite" * 1025
        case 2:
            return pb.TranslateRequest(texts=["y" * rng.choice((10_000, 200_000))]).SerializeToString()
        case _:
            return bytes(5 * 2**20) if rng.random() < 0.1 else bytes(50_000)


def varint(number: int) -> bytes:
    """Varint encoding of any length."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


KINDS: dict[str, tuple[float, Bytes]] = {
    "valid": (15, valid),
    "mutated": (35, mutated),
    "wire": (18, wire),
    "huge varints": (6, huge_varints),
    "nested": (4, nested),
    "not UTF-8": (8, not_utf8),
    "raw": (13.5, raw),
    "many": (0.5, many),
}
"""Mutations with their weights."""
