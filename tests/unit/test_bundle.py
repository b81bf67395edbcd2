import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.export.bundle import (
    FORMAT_VERSION,
    GOLDEN_FILE,
    MANIFEST_FILE,
    REPORT_FILE,
    BundleError,
    Manifest,
    list_files,
    open_bundle,
    version_of,
    write_manifest,
)
from dragoman.export.graphs import DECODER_FILE, ENCODER_FILE, Dimensions
from dragoman.model.config import DecodingRules
from tests.harness import empty_graph

SIZE = Dimensions(encoder_layers=2, decoder_layers=2, heads=4, head_width=8, d_model=32, target_vocabulary=340)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a bündle"
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("weights.bin", "tokenizer/sentencepiece.model", GOLDEN_FILE, REPORT_FILE):
        (folder / name).write_bytes(name.encode() * 100)
    for name in (ENCODER_FILE, DECODER_FILE):
        (folder / name).write_bytes(empty_graph(name))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="tiny",
        version="",
        family="transformer",
        source_languages=("en",),
        target_languages=("fr",),
        precision="float32",
        dimensions=SIZE,
        decoding=DecodingRules(start_id=1, end_ids=(2,), pad_id=0),
        max_source_characters=1000,
        files=list_files(folder),
    )
    write_manifest(folder, manifest)
    return folder


def edit(folder: Path, key: str, value: object, seal: bool = True) -> None:
    """Change what manifest.json says, with or without the version that goes with it."""
    path = folder / MANIFEST_FILE
    plain = json.loads(path.read_text()) | {key: value}
    path.write_text(json.dumps(plain | ({"version": version_of(plain)} if seal else {})))


def test_what_was_written_is_read(folder: Path) -> None:
    manifest = open_bundle(folder).manifest
    assert (manifest.name, manifest.dimensions) == ("tiny", SIZE)
    assert [entry.path for entry in manifest.files] == [
        "decoder.onnx",
        "encoder.onnx",
        "golden.json",
        "report.json",
        "tokenizer/sentencepiece.model",
        "weights.bin",
    ]


def test_a_bundle_may_be_moved(folder: Path) -> None:
    moved = folder.rename(folder.with_name("elsewhere"))
    assert open_bundle(moved).path("weights.bin").is_file()


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    with pytest.raises(BundleError, match=r"weights\.bin: missing"):
        open_bundle(folder)


def test_a_short_file_is_named_with_both_sizes(folder: Path) -> None:
    path = folder / "weights.bin"
    path.write_bytes(path.read_bytes()[:550])
    with pytest.raises(BundleError, match=r"weights\.bin: has 550 bytes, should have 1100"):
        open_bundle(folder)


def test_an_altered_file_is_named(folder: Path) -> None:
    path = folder / "encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(BundleError, match=r"encoder\.onnx: altered"):
        open_bundle(folder)


def test_an_altered_manifest_is_named(folder: Path) -> None:
    edit(folder, "max_source_characters", 2000, seal=False)
    with pytest.raises(BundleError, match=r"manifest\.json: altered"):
        open_bundle(folder)


def test_a_newer_format_is_refused_with_both_versions(folder: Path) -> None:
    edit(folder, "format_version", FORMAT_VERSION + 1)
    edit(folder, "something_new", True)
    with pytest.raises(BundleError, match=f"format version {FORMAT_VERSION + 1} is newer than {FORMAT_VERSION}"):
        open_bundle(folder)


def test_an_unknown_key_is_named(folder: Path) -> None:
    edit(folder, "presision", "int8")
    with pytest.raises(BundleError, match="presision"):
        open_bundle(folder)


def test_a_folder_that_is_no_bundle_says_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json: missing; a bundle is a folder"):
        open_bundle(tmp_path)


def test_a_manifest_that_is_no_json_says_so(folder: Path) -> None:
    (folder / MANIFEST_FILE).write_text('{"format_version": 1,')
    with pytest.raises(BundleError, match="not JSON"):
        open_bundle(folder)


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname"])
def test_a_file_outside_the_bundle_is_refused(folder: Path, path: str) -> None:
    (folder.parent / "outside").write_bytes(b"")
    edit(folder, "files", [{"path": path, "size": 0, "sha256": ""}])
    with pytest.raises(BundleError, match="lies outside the bundle"):
        open_bundle(folder)


def test_the_version_follows_all_but_the_report(folder: Path) -> None:
    manifest = open_bundle(folder).manifest

    def version(**changes: Any) -> str:
        write_manifest(folder, dataclasses.replace(manifest, files=list_files(folder), **changes))
        return open_bundle(folder).manifest.version

    before = version()
    assert len(before) == 12
    (folder / REPORT_FILE).write_text("{}")
    assert version() == before
    rules = dataclasses.replace(manifest.decoding, max_output_tokens=7)
    assert version(decoding=rules) != before
    (folder / "weights.bin").write_bytes(b"other")
    assert version() != before
