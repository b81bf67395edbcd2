import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from dragoman.bundle.tokenizers import Tokenizer, open_tokenizer
from dragoman.model.importing.tokenizers import FAMILIES, import_tokenizer
from tests.support.hugging_face_tokenizers import TOKENIZERS, marian

KITE = "A kite falls near the river."


def folder_of(kind: str, folder: Path) -> Path:
    """The reference's files."""
    TOKENIZERS[kind][1](folder)
    return folder


def imported(kind: str, theirs: Path) -> Tokenizer:
    return import_tokenizer(TOKENIZERS[kind][0], theirs, theirs.with_name("ours"))


def edit(path: Path, **changes: Any) -> None:
    """Change a JSON file; None removes a key."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# --- where the special tokens stand


@pytest.mark.parametrize(
    ("kind", "languages", "around", "prompt"),
    [
        ("marian", ("en", "fr"), ([], ["</s>"]), ["<pad>"]),
        ("marian, several targets", ("en", "pt-BR"), ([">>pt_br<<"], ["</s>"]), ["<pad>"]),
        ("m2m100", ("en", "fr"), (["__en__"], ["</s>"]), ["</s>", "__fr__"]),
        ("nllb", ("en", "fr"), (["eng_Latn"], ["</s>"]), ["</s>", "fra_Latn"]),
        ("nllb, legacy", ("en", "fr"), ([], ["</s>", "eng_Latn"]), ["</s>", "fra_Latn"]),
        ("mbart", ("en", "fr"), ([], ["</s>", "en_XX"]), ["fr_XX"]),
        ("mbart50", ("en", "fr"), (["en_XX"], ["</s>"]), ["</s>", "fr_XX"]),
        ("bart", ("und", "und"), (["<s>"], ["</s>"]), ["</s>", "<s>"]),
        ("t5", ("en", "fr"), ([], ["</s>"]), ["<pad>"]),
        ("pegasus", ("und", "und"), ([], ["</s>"]), ["<pad>"]),
        ("roberta", ("und", ""), (["<s>"], ["</s>"]), []),
        ("bert", ("und", ""), (["[CLS]"], ["[SEP]"]), []),
    ],
)
def test_special_tokens_are_placed_as_in_the_family(
    kind: str, languages: tuple[str, str], around: tuple[list[str], list[str]], prompt: list[str], tmp_path: Path
) -> None:
    reference = TOKENIZERS[kind][1](tmp_path / "theirs")
    tokenizer = imported(kind, tmp_path / "theirs")
    before, after = (reference.convert_tokens_to_ids(tokens) for tokens in around)
    source, target = languages
    for text in ("", KITE):
        ids = tokenizer.encode(text, source, target)
        assert ids[: len(before)] == before
        assert ids[len(ids) - len(after) :] == after
        assert len(ids) > len(before) + len(after) or not text
    assert list(tokenizer.prompt(target)) == reference.convert_tokens_to_ids(prompt)
    assert tokenizer.closing_tokens == len(after)


def test_a_t5_instruction_precedes_the_text(tmp_path: Path) -> None:
    reference = TOKENIZERS["t5"][1](tmp_path / "theirs")
    tokenizer = imported("t5", tmp_path / "theirs")
    assert tokenizer.encode(KITE, "en", "de") == reference(f"translate English to German: {KITE}")["input_ids"]
    assert tokenizer.encode(KITE, "en") == reference(KITE)["input_ids"]


def test_a_t5_without_tasks_has_no_instruction(tmp_path: Path) -> None:
    reference = TOKENIZERS["t5"][1](tmp_path / "theirs")
    edit(tmp_path / "theirs" / "config.json", task_specific_params=None)
    tokenizer = imported("t5", tmp_path / "theirs")
    assert (tokenizer.source_languages, tokenizer.target_languages) == (("und",), ("und",))
    assert tokenizer.encode(KITE, "und", "und") == reference(KITE)["input_ids"]


# --- languages


def test_languages_have_bcp_47_codes_and_native_names(tmp_path: Path) -> None:
    tokenizer = imported("nllb", folder_of("nllb", tmp_path / "theirs"))
    assert len(tokenizer.source_languages) == len(set(tokenizer.source_languages)) == 202
    assert {"fr", "zh-Hans", "zh-Hant", "ace-Arab", "sr", "yue"} <= set(tokenizer.target_languages)
    assert tokenizer.native_codes["fra_Latn"] == "fr"
    assert tokenizer.native_codes["zho_Hans"] == "zh-Hans"


def test_a_tag_names_a_language_with_or_without_its_brackets(tmp_path: Path) -> None:
    tokenizer = imported("marian, several targets", folder_of("marian, several targets", tmp_path / "theirs"))
    assert tokenizer.source_languages == ("en",)
    assert tokenizer.target_languages == ("fr", "pt-BR", "zh-Hans")
    assert tokenizer.native_codes[">>cmn_Hans<<"] == tokenizer.native_codes["cmn_Hans"] == "zh-Hans"


@pytest.mark.parametrize("kind", ["m2m100", "nllb", "mbart50"])
def test_a_forced_target_language_is_the_only_one(kind: str, tmp_path: Path) -> None:
    reference = TOKENIZERS[kind][1](tmp_path / "theirs")
    names = {"m2m100": "__de__", "nllb": "deu_Latn", "mbart50": "de_DE"}
    edit(tmp_path / "theirs" / "config.json", forced_bos_token_id=reference.convert_tokens_to_ids(names[kind]))
    tokenizer = imported(kind, tmp_path / "theirs")
    assert tokenizer.target_languages == ("de",)
    assert len(tokenizer.source_languages) > 20


def test_an_mbart_with_a_language_as_start_token_has_one_target(tmp_path: Path) -> None:
    reference = TOKENIZERS["mbart"][1](tmp_path / "theirs")
    edit(tmp_path / "theirs" / "config.json", decoder_start_token_id=reference.convert_tokens_to_ids("ro_RO"))
    assert imported("mbart", tmp_path / "theirs").target_languages == ("ro",)


def test_the_prompt_follows_generation_config(tmp_path: Path) -> None:
    folder = folder_of("bart", tmp_path / "theirs")
    (folder / "generation_config.json").write_text('{"decoder_start_token_id": 2, "forced_bos_token_id": null}')
    assert imported("bart", folder).prompt("und") == (2,)


@pytest.mark.parametrize(
    ("names", "sources", "targets"),
    [
        (("eng", "fra"), ("en",), ("fr",)),
        (("en", "pt_br"), ("en",), ("pt-BR",)),
        (("cat_oci_spa", "en"), ("ca", "oc", "es"), ("en",)),
        (("ROMANCE", "en"), ("und",), ("en",)),
        (("mul", "en"), ("und",), ("en",)),
        ((None, None), ("de",), ("fi",)),
    ],
)
def test_marian_languages_come_from_the_files_or_the_folder_name(
    names: tuple[str | None, str | None], sources: tuple[str, ...], targets: tuple[str, ...], tmp_path: Path
) -> None:
    folder = folder_of("marian", tmp_path / "opus-mt-de-fi")
    edit(folder / "tokenizer_config.json", source_lang=names[0], target_lang=names[1])
    tokenizer = imported("marian", folder)
    assert (tokenizer.source_languages, tokenizer.target_languages) == (sources, targets)


def test_padding_and_truncation_in_a_file_are_ignored(tmp_path: Path) -> None:
    reference = TOKENIZERS["bert"][1](tmp_path / "theirs")
    right = reference(KITE)["input_ids"]
    path = tmp_path / "theirs" / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(path))
    library.enable_padding(length=64)
    library.enable_truncation(4)
    library.save(str(path))
    assert imported("bert", tmp_path / "theirs").encode(KITE, "und") == right


# --- older files


@pytest.mark.parametrize("kind", ["mbart50", "t5", "pegasus", "bart", "roberta", "bert"])
def test_older_files_give_the_same_ids_as_tokenizer_json(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "theirs")
    new = import_tokenizer(TOKENIZERS[kind][0], folder, tmp_path / "new")
    (folder / "tokenizer.json").unlink()
    old = import_tokenizer(TOKENIZERS[kind][0], folder, tmp_path / "old")
    source, target = new.source_languages[0], (*new.target_languages, "")[0]
    for text in (KITE, "Été déjà, œuf!", "unknown 中文 🙂 <s></s>", "don't  stop"):
        assert old.encode(text, source, target) == new.encode(text, source, target)
    assert old.prompt(target) == new.prompt(target)
    assert old.source_languages == new.source_languages


@pytest.mark.parametrize("kind", ["bart", "bert"])
def test_usual_special_tokens_need_no_configuration(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "theirs")
    right = import_tokenizer(kind, folder, tmp_path / "new").control_ids
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert imported(kind, folder).control_ids == right


def test_language_tokens_without_ids_follow_the_pieces(tmp_path: Path) -> None:
    folder = folder_of("nllb", tmp_path / "theirs")
    (folder / "tokenizer.json").unlink()
    tokenizer = imported("nllb", folder)
    pieces = 90
    assert tokenizer.prompt("ace-Arab") == (2, pieces + 1)
    assert tokenizer.prompt("zu") == (2, pieces + 202)


# --- faults


def test_an_unknown_family_of_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"family must be one of {', '.join(sorted(FAMILIES))}, is 'gpt'"):
        import_tokenizer("gpt", tmp_path, tmp_path / "ours")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("marian", "source.spm"),
        ("marian", "target.spm"),
        ("marian", "vocab.json"),
        ("marian, two vocabularies", "target_vocab.json"),
        ("m2m100", "sentencepiece.bpe.model"),
    ],
)
def test_a_missing_file_is_named(kind: str, name: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path / "theirs")
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"must contain {name}"):
        imported(kind, folder)


def test_a_folder_without_any_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for family in sorted(FAMILIES):
        with pytest.raises(FileNotFoundError, match="must contain "):
            import_tokenizer(family, tmp_path / "theirs", tmp_path / family)


def test_swapped_models_do_not_fit_their_vocabularies(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    marian(folder, separate=True)
    for old, new in (("source.spm", "aside"), ("target.spm", "source.spm"), ("aside", "target.spm")):
        shutil.move(folder / old, folder / new)
    with pytest.raises(ValueError, match=r"source.spm: only \d+ of its \d+ pieces are in the vocabulary"):
        imported("marian, two vocabularies", folder)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "vocab.json: .*JSON"),
        (b"[1, 2]", "vocab.json"),
        (b'{"a": 1, "b": 1}', "vocab.json: must map pieces to unique ids"),
        (b'{"a": -1}', "vocab.json: a: .*greater than or equal to 0"),
    ],
)
def test_a_broken_vocabulary_is_named(content: bytes, fault: str, tmp_path: Path) -> None:
    folder = folder_of("marian", tmp_path / "theirs")
    (folder / "vocab.json").write_bytes(content)
    with pytest.raises(ValueError, match=fault):
        imported("marian", folder)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": {"vocab": {}}}', b'{"added_tokens": [], "model": 1}'])
def test_a_broken_tokenizer_json_is_named(content: bytes, tmp_path: Path) -> None:
    folder = folder_of("t5", tmp_path / "theirs")
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="tokenizer.json: "):
        imported("t5", folder)


def test_a_start_token_without_default_must_be_set(tmp_path: Path) -> None:
    folder = folder_of("m2m100", tmp_path / "theirs")
    edit(folder / "config.json", decoder_start_token_id=None)
    with pytest.raises(ValueError, match=r"config.json: decoder_start_token_id is missing"):
        imported("m2m100", folder)


@pytest.mark.parametrize("name", ["vocab.json", "source.spm", "tokenizer.json"])
def test_a_file_lost_after_the_import_is_named(name: str, tmp_path: Path) -> None:
    kind = "bart" if name == "tokenizer.json" else "marian"
    imported(kind, folder_of(kind, tmp_path / "theirs"))
    (tmp_path / "ours" / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: missing"):
        open_tokenizer(tmp_path / "ours")
