"""The bundle: the folder that `export` writes and `service` reads. Nothing else passes between them.

    manifest.json     name, languages, decoding rules, and the other files with size and sha256
    encoder.onnx      decoder.onnx      weights.bin         no decoder.onnx in a bundle that only embeds
    product.onnx      a product with a known answer, in int8 bundles only
    tokenizer/        the tokenizer's own files
    golden.json       texts with the reference's answers, to be replayed on the serving machine
    report.json       results of the proof at export

All paths inside are relative: a bundle may be moved, and may be read-only.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dragoman.bundle.graph_check import check_graph
from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE, Dimensions
from dragoman.bundle.json_files import MAX_BYTES, read_json
from dragoman.bundle.precision import Precision
from dragoman.bundle.rules import DecodingRules, EmbeddingRules
from dragoman.bundle.validation import STRICT, Count, TokenId, explain

FORMAT_VERSION = 2
"""Raised with every change that an older reader cannot understand."""

MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "weights.bin"
GOLDEN_FILE = "golden.json"
REPORT_FILE = "report.json"
TOKENIZER_FOLDER = "tokenizer"
PRODUCT_FILE = "product.onnx"

MAX_JSON_BYTES = 16 * 2**20
"""The largest manifest.json or golden.json: either is read into memory as a whole."""

MAX_NAME_CHARACTERS = 128

MAX_GOLDEN_TEXTS = 4096


class BundleError(ValueError):
    """A bundle that cannot be used; the message names the file and the fault."""


@dataclass(frozen=True, config=STRICT)
class FileEntry:
    """One file of a bundle."""

    path: str
    """Relative to the bundle, with "/" as separator."""
    size: Annotated[int, Field(ge=0)]
    """In bytes."""
    sha256: str


@dataclass(frozen=True, config=STRICT)
class Manifest:
    """manifest.json."""

    format_version: int
    name: str
    version: str
    """Twelve hexadecimal digits, a hash of this manifest and of all files but the report."""
    family: str
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    precision: Precision
    dimensions: Dimensions
    """The fixed axes of the graphs; `bundle.graphs` has the others."""
    decoding: DecodingRules
    max_source_characters: Count
    """A longer text is refused, or truncated, before it is tokenized."""
    files: tuple[FileEntry, ...]
    """Every file but the manifest itself."""
    embedding: EmbeddingRules = EmbeddingRules()

    def __post_init__(self) -> None:
        """Check the names that appear in logs and replies: they must not break a log line."""
        for field, names in (
            ("name", (self.name,)),
            ("family", (self.family,)),
            ("source_languages", self.source_languages),
            ("target_languages", self.target_languages),
        ):
            for name in names:
                if not (name.isprintable() and len(name) <= MAX_NAME_CHARACTERS):
                    raise ValueError(f"{field} must be at most {MAX_NAME_CHARACTERS} printable characters")

    @property
    def needed_files(self) -> tuple[str, ...]:
        """The files that must exist, besides the tokenizer's."""
        return (*self.graph_files, WEIGHTS_FILE, GOLDEN_FILE)

    @property
    def graph_files(self) -> tuple[str, ...]:
        """The graphs that such a bundle has."""
        decoder = (DECODER_FILE,) if self.translates else ()
        return (ENCODER_FILE, *decoder, *((PRODUCT_FILE,) if self.precision == "int8" else ()))

    @property
    def translates(self) -> bool:
        """Whether the bundle has a decoder; without one it only embeds."""
        return self.dimensions.decoder_layers > 0


@dataclass(frozen=True, config=STRICT)
class GoldenText:
    """A text with the reference's answer."""

    text: str
    source_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    tokens: tuple[TokenId, ...]
    """The ids after the prompt, including the end token if there was one."""
    log_probs: tuple[float, ...]
    """The natural log-probability of each chosen token; a token forced at the limit has none."""
    margins: tuple[float, ...]
    """The difference between the two largest logits, for each of `log_probs`."""
    source_language: str = ""
    """BCP-47, like `target_language`; "" if the tokenizer has no languages."""
    target_language: str = ""
    mean_state: tuple[float, ...] = ()
    """The mean of the reference's states over all tokens; only for a bundle without a decoder."""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files have been checked."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """The path of the bundle's file `name`."""
        return self.folder / name

    def golden(self) -> tuple[GoldenText, ...]:
        """The texts of golden.json. Raises BundleError if they do not fit the manifest."""
        path = self.path(GOLDEN_FILE)
        size, rules = path.stat().st_size, self.manifest.decoding
        if size > MAX_JSON_BYTES:
            raise BundleError(f"{path}: has {size} bytes, may have {MAX_JSON_BYTES}")
        try:
            texts = TypeAdapter(tuple[GoldenText, ...]).validate_json(path.read_bytes())
        except ValidationError as error:
            raise BundleError(f"{path}: {explain(error)}") from error
        if len(texts) > MAX_GOLDEN_TEXTS:
            raise BundleError(f"{path}: has {len(texts)} texts, may have {MAX_GOLDEN_TEXTS}")
        least, most = (1, rules.max_output_tokens) if self.manifest.translates else (0, 0)
        for index, text in enumerate(texts):
            if len(text.source_ids) > rules.max_source_tokens or not least <= len(text.tokens) <= most:
                raise BundleError(f"{path}: text {index} has more tokens than the manifest allows, or none")
        return texts

    def report(self) -> dict[str, Any]:
        """report.json as plain values."""
        report: dict[str, Any] = json.loads(self.path(REPORT_FILE).read_bytes())
        return report


def open_bundle(folder: Path) -> Bundle:
    """Read the manifest, and check size and sha256 of every listed file and that the graphs are mere data.

    Raises BundleError naming a file that is missing, truncated, altered, of a newer format, or more than data.
    """
    manifest = _read_manifest(folder / MANIFEST_FILE)
    for entry in manifest.files:
        _check_file(folder, entry)
    _check_listed(folder, manifest)
    for name in manifest.graph_files:
        try:
            check_graph(folder / name, folder / WEIGHTS_FILE)
        except ValueError as error:
            raise BundleError(f"{folder / name}: {error}") from error
    return Bundle(folder, manifest)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, the last file of a new bundle, with the version that its contents determine."""
    plain = TypeAdapter(Manifest).dump_python(manifest, mode="json")
    plain["version"] = version_of(plain)
    (folder / MANIFEST_FILE).write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


def list_files(folder: Path) -> tuple[FileEntry, ...]:
    """Every file below `folder` but the manifest, sorted by path."""
    paths = [path for path in _files_below(folder) if path != folder / MANIFEST_FILE]
    return tuple(FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, _sha256(path)) for path in paths)


def version_of(manifest: Mapping[str, Any]) -> str:
    """The version of a bundle with this manifest.json; the report, which differs by machine, does not count."""
    files = [entry for entry in manifest["files"] if entry["path"] != REPORT_FILE]
    content = json.dumps({**manifest, "version": "", "files": files}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _read_manifest(path: Path) -> Manifest:
    if not path.is_file():
        raise BundleError(f"{path}: missing; a bundle is a folder written by `dragoman export`")
    try:
        plain = read_json(path, MAX_JSON_BYTES)
    except ValueError as error:
        raise BundleError(str(error)) from error
    found = plain.get("format_version") if isinstance(plain, dict) else None
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise BundleError(
            f"{path}: format version {found} is newer than {FORMAT_VERSION}, the newest that this Dragoman reads"
        )
    try:
        manifest = TypeAdapter(Manifest).validate_python(plain)
    except ValidationError as error:
        raise BundleError(f"{path}: {explain(error)}") from error
    if manifest.version != version_of(plain):
        raise BundleError(f"{path}: altered since export (its version does not match its contents)")
    return manifest


def _check_listed(folder: Path, manifest: Manifest) -> None:
    """Every file that will be read is listed, and so was checked; files read as a whole are small enough."""
    listed = {entry.path for entry in manifest.files}
    for name in manifest.needed_files:
        if name not in listed:
            raise BundleError(f"{folder / MANIFEST_FILE}: does not list {name}")
    for path in _files_below(folder / TOKENIZER_FOLDER):
        if path.relative_to(folder).as_posix() not in listed:
            raise BundleError(f"{path}: not listed in {MANIFEST_FILE}")
        if path.stat().st_size > MAX_BYTES:
            raise BundleError(f"{path}: has {path.stat().st_size} bytes, may have {MAX_BYTES}")


def _check_file(folder: Path, entry: FileEntry) -> None:
    path = folder / entry.path
    well_formed = "\0" not in entry.path and PurePosixPath(entry.path).as_posix() == entry.path
    if not well_formed or not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{folder / MANIFEST_FILE}: {entry.path!r} is outside the bundle")
    if not path.is_file():
        raise BundleError(f"{path}: missing")
    size = path.stat().st_size
    if size != entry.size:
        raise BundleError(f"{path}: has {size} bytes, should have {entry.size}")
    if _sha256(path) != entry.sha256:
        raise BundleError(f"{path}: altered since export (its sha256 does not match the manifest)")


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
