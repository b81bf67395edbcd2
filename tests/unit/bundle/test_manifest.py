import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle.graphs import DECODER_FILE, ENCODER_FILE, Dimensions
from dragoman.bundle.json_files import MAX_BYTES
from dragoman.bundle.manifest import (
    FORMAT_VERSION,
    GOLDEN_FILE,
    MANIFEST_FILE,
    MAX_JSON_BYTES,
    REPORT_FILE,
    BundleError,
    Manifest,
    list_files,
    open_bundle,
    version_of,
    write_manifest,
)
from dragoman.bundle.rules import DecodingRules
from tests.support.harness import empty_graph

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
    """Change a value of manifest.json, with or without the matching version."""
    path = folder / MANIFEST_FILE
    plain = json.loads(path.read_text()) | {key: value}
    path.write_text(json.dumps(plain | ({"version": version_of(plain)} if seal else {})))


def test_a_manifest_survives_a_round_trip(folder: Path) -> None:
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


def test_a_truncated_file_is_named_with_both_sizes(folder: Path) -> None:
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


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json: missing; a bundle is a folder"):
        open_bundle(tmp_path)


def test_a_manifest_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / MANIFEST_FILE).write_text('{"format_version": 1,')
    with pytest.raises(BundleError, match="not JSON"):
        open_bundle(folder)


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/hostname", "tokenizer/../../outside", "./weights.bin", "a\0b", ""]
)
def test_a_file_outside_the_bundle_is_refused(folder: Path, path: str) -> None:
    (folder.parent / "outside").write_bytes(b"")
    edit(folder, "files", [{"path": path, "size": 0, "sha256": ""}])
    with pytest.raises(BundleError, match="is outside the bundle"):
        open_bundle(folder)


def seal(folder: Path) -> None:
    """Let manifest.json list the present files, as the maker of a hostile bundle would."""
    edit(folder, "files", [dataclasses.asdict(entry) for entry in list_files(folder)])


@pytest.mark.parametrize("name", ["weights.bin", "encoder.onnx", "tokenizer/sentencepiece.model"])
def test_a_link_out_of_the_bundle_is_refused(folder: Path, name: str) -> None:
    outside = folder.parent / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    seal(folder)
    with pytest.raises(BundleError, match=f"'{name}' is outside the bundle"):
        open_bundle(folder)


def test_a_folder_linked_out_of_the_bundle_is_refused(folder: Path) -> None:
    outside = (folder / "tokenizer").rename(folder.parent / "outside")
    (folder / "tokenizer").symlink_to(outside)
    with pytest.raises(BundleError, match=r"'tokenizer/sentencepiece\.model' is outside the bundle"):
        open_bundle(folder)


def test_a_bundle_may_itself_be_a_link(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert open_bundle(folder.parent / "link").manifest.name == "tiny"


@pytest.mark.parametrize("name", ["weights.bin", "encoder.onnx", "decoder.onnx", "golden.json"])
def test_every_file_to_be_read_must_be_listed(folder: Path, name: str) -> None:
    edit(folder, "files", [dataclasses.asdict(entry) for entry in list_files(folder) if entry.path != name])
    with pytest.raises(BundleError, match=f"manifest.json: does not list {name}"):
        open_bundle(folder)


def test_an_unlisted_tokenizer_file_is_refused(folder: Path) -> None:
    (folder / "tokenizer" / "description.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer/description\.json: not listed"):
        open_bundle(folder)


def test_a_graph_that_is_more_than_data_is_refused_by_name(folder: Path) -> None:
    (folder / "decoder.onnx").write_bytes(empty_graph() + bytes((0x42, 7, 0x0A, 3)) + b"bad" + bytes((0x10, 1)))
    seal(folder)
    with pytest.raises(BundleError, match=r"decoder\.onnx: must import only version"):
        open_bundle(folder)


def resize(folder: Path, **changes: object) -> None:
    edit(folder, "dimensions", {**dataclasses.asdict(SIZE), **changes})


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SIZE)])
@pytest.mark.parametrize("size", [-1, 2**31, 2**63, 10**400, 0.5, None])
def test_impossible_dimensions_are_refused(folder: Path, name: str, size: object) -> None:
    resize(folder, **{name: size})
    with pytest.raises(BundleError, match=rf"manifest\.json: dimensions\.{name}: "):
        open_bundle(folder)


def test_heads_and_their_width_are_bounded_together(folder: Path) -> None:
    resize(folder, heads=2**10, head_width=2**10)
    with pytest.raises(BundleError, match="heads × head_width must be at most 65536, is 1024 × 1024"):
        open_bundle(folder)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("max_source_tokens", 10**10),
        ("max_output_tokens", 10**10),
        ("prompt_tokens", 10**10),
        ("output_margin", 10**10),
        ("output_factor", 1e300),
        ("output_factor", float("inf")),
        ("pad_id", -1),
        ("end_ids", [10**12]),
        ("end_ids", []),
    ],
)
def test_rules_that_would_exhaust_memory_are_refused(folder: Path, rule: str, value: object) -> None:
    edit(folder, "decoding", {"start_id": 1, "end_ids": [2], "pad_id": 0, rule: value})
    with pytest.raises(BundleError, match=rf"manifest\.json: decoding\.{rule}"):
        open_bundle(folder)


@pytest.mark.parametrize("value", ["a\nServing evil", "\x1b[2J", "x" * 129])
@pytest.mark.parametrize("name", ["name", "family", "source_languages", "target_languages"])
def test_names_that_would_break_a_log_line_are_refused(folder: Path, name: str, value: str) -> None:
    edit(folder, name, value if name in ("name", "family") else [value])
    with pytest.raises(BundleError, match=f"{name} must be at most 128 printable characters"):
        open_bundle(folder)


@pytest.mark.parametrize(
    "content", ["[" * 10**6, '{"files":' * 10**5, "9" * 10**5, "[" + "0," * 10**6 + "0]", '"\\ud800"']
)
def test_json_that_would_exhaust_the_parser_is_refused(folder: Path, content: str) -> None:
    (folder / MANIFEST_FILE).write_text(content)
    with pytest.raises(BundleError, match=r"manifest\.json: "):
        open_bundle(folder)


@pytest.mark.parametrize("name", [MANIFEST_FILE, GOLDEN_FILE])
def test_an_oversized_json_file_is_refused(folder: Path, name: str) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    if name == GOLDEN_FILE:
        seal(folder)
    with pytest.raises(BundleError, match=f"{name}: has {MAX_JSON_BYTES + 1} bytes, may have {MAX_JSON_BYTES}"):
        open_bundle(folder).golden()


def test_an_oversized_tokenizer_file_is_refused(folder: Path) -> None:
    with (folder / "tokenizer" / "sentencepiece.model").open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    seal(folder)
    with pytest.raises(BundleError, match=rf"sentencepiece\.model: has {MAX_BYTES + 1} bytes, may have {MAX_BYTES}"):
        open_bundle(folder)


GOLDEN = {"text": "kite", "source_ids": [5, 2], "tokens": [6, 2], "log_probs": [-1, -1], "margins": [1, 1]}


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ([GOLDEN | {"source_ids": [5] * 513}], "text 0 has more tokens than the manifest allows"),
        ([GOLDEN, GOLDEN | {"tokens": [5] * 513}], "text 1 has more tokens than the manifest allows"),
        ([GOLDEN | {"tokens": []}], "text 0 has more tokens than the manifest allows, or none"),
        ([GOLDEN | {"source_ids": []}], r"0\.source_ids"),
        ([GOLDEN | {"source_ids": [-1]}], r"0\.source_ids\.0"),
        ([GOLDEN | {"tokens": [2**63]}], r"0\.tokens\.0"),
        ([GOLDEN] * 4097, "has 4097 texts, may have 4096"),
    ],
)
def test_golden_texts_that_do_not_fit_the_bundle_are_refused(folder: Path, texts: list[object], fault: str) -> None:
    (folder / GOLDEN_FILE).write_text(json.dumps([GOLDEN]))
    seal(folder)
    assert len(open_bundle(folder).golden()) == 1
    (folder / GOLDEN_FILE).write_text(json.dumps(texts))
    seal(folder)
    with pytest.raises(BundleError, match=rf"golden\.json: .*{fault}"):
        open_bundle(folder).golden()


def test_the_version_depends_on_all_files_but_the_report(folder: Path) -> None:
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
