"""Import of the tokenizer in a Hugging Face folder to files for `open_tokenizer`.

Each family has a function that describes its special tokens, with x for the text in its docstring. `TokenizerFolder`
reads the files.
"""

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.bundle.tokenizers.described import open_described
from dragoman.bundle.tokenizers.description import Description, Instruction, Kind, Language
from dragoman.bundle.tokenizers.language_codes import (
    LANGUAGE_GROUPS,
    M2M100_CODES,
    MBART50_CODES,
    MBART_CODES,
    UNDETERMINED,
    WMT21_CODES,
    bcp47_codes,
)
from dragoman.bundle.tokenizers.library import LIBRARY_FILE
from dragoman.bundle.tokenizers.pieces import (
    SOURCE_FILE,
    TARGET_FILE,
    TARGET_VOCABULARY_FILE,
    VOCABULARY_FILE,
    open_pieces,
    read_vocabulary,
    write_vocabulary,
)
from dragoman.bundle.tokenizers.protocol import Tokenizer
from dragoman.model.importing.tokenizer_conversion import as_processed, check_coverage, copy_library, copy_pieces, id_of
from dragoman.model.importing.tokenizer_files import TokenizerFolder

UNKNOWN_LANGUAGES = (Language(UNDETERMINED),)

TAG = re.compile(r">>(.+)<<")
M2M100_TAG = re.compile(r"__([a-z]{2,3})__")
NLLB_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
MBART_TAG = re.compile(r"[a-z]{2}_[A-Z]{2}")


def import_tokenizer(family: str, source: Path, target: Path) -> Tokenizer:
    """Convert the tokenizer in the Hugging Face folder `source` to files for `open_tokenizer` in the new `target`.

    Raises FileNotFoundError or ValueError with the path of the faulty file, and ValueError for an unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(sorted(FAMILIES))}, is {family!r}")
    target.mkdir(parents=True)
    FAMILIES[family](TokenizerFolder(source), target).save(target)
    return open_described(target)


# --- families on SentencePiece alone


def _marian(folder: TokenizerFolder, target: Path) -> Description:
    """x </s>, after >>xxx<< in a checkpoint with several targets. Source and target have separate models."""
    ids = read_vocabulary(folder.find("vocab.json"))
    separate = bool(folder.setting("separate_vocabs", False))
    target_ids = read_vocabulary(folder.find("target_vocab.json")) if separate else ids
    for name, new, vocabulary in (("source.spm", SOURCE_FILE, ids), ("target.spm", TARGET_FILE, target_ids)):
        check_coverage(folder.find(name), vocabulary)
        shutil.copyfile(folder.find(name), target / new)
    write_vocabulary(target / VOCABULARY_FILE, ids)
    if separate:
        write_vocabulary(target / TARGET_VOCABULARY_FILE, target_ids)
    tags = {} if separate else {match[1]: number for token, number in ids.items() if (match := TAG.fullmatch(token))}
    names = [str(folder.setting(name, "")) for name in ("source_lang", "target_lang")]
    if not all(names):
        names = list(_languages_of_name(folder.path.resolve().name))
    return Description(
        kind="pieces",
        before=("target",) if tags else (),
        after=(id_of("</s>", ids, folder),),
        prompt=folder.prompt(id_of("<pad>", target_ids, folder)),
        control_ids=_control(ids, tags.values()),
        target_control_ids=_control(target_ids, ()) if separate else None,
        unknown_id=id_of("<unk>", ids, folder),
        source_languages=_marian_languages(names[0]),
        target_languages=_tagged(tags, ">>{}<<", shortest=False) if tags else _marian_languages(names[1]),
    )


def _m2m100(folder: TokenizerFolder, target: Path) -> Description:
    """__xx__ x </s>, and the target's token forced."""
    if not folder.has("vocab.json"):
        return _nllb(folder, target)
    ids = read_vocabulary(folder.find("vocab.json"))
    pieces = folder.find("sentencepiece.bpe.model")
    check_coverage(pieces, ids)
    shutil.copyfile(pieces, target / SOURCE_FILE)
    write_vocabulary(target / VOCABULARY_FILE, ids)
    codes = WMT21_CODES if folder.setting("language_codes", "m2m100") == "wmt21" else M2M100_CODES
    added = {
        match[1]: number for token, number in folder.added_tokens().items() if (match := M2M100_TAG.fullmatch(token))
    }
    tags = added or {code: len(ids) + index for index, code in enumerate(codes)}
    return Description(
        kind="pieces",
        before=("source",),
        after=(id_of("</s>", ids, folder),),
        prompt=(folder.start_id(), "target"),
        control_ids=_control(ids, tags.values()),
        unknown_id=id_of("<unk>", ids, folder),
        source_languages=_tagged(tags, "__{}__"),
        target_languages=_forced(folder, _tagged(tags, "__{}__")),
    )


# --- families on the tokenizers library, or on a SentencePiece model with shifted ids


def _nllb(folder: TokenizerFolder, target: Path) -> Description:
    """xxx_Xxxx x </s>, in legacy checkpoints x </s> xxx_Xxxx, and the target's token forced."""
    kind, control, tags = _fairseq(folder, target, NLLB_TAG, ())
    end = id_of("</s>", control, folder)
    legacy = bool(folder.setting("legacy_behaviour", False))
    languages = _tagged(tags)
    return Description(
        kind=kind,
        before=() if legacy else ("source",),
        after=(end, "source") if legacy else (end,),
        prompt=(folder.start_id(), "target"),
        control_ids=tuple(sorted(control.values())),
        unknown_id=id_of("<unk>", control, folder),
        source_languages=languages,
        target_languages=_forced(folder, languages),
    )


def _mbart(folder: TokenizerFolder, target: Path) -> Description:
    """mBART-25 or mBART-50, which have the same configuration but different tokenizers."""
    names = {str(settings.get("tokenizer_class", "")) for settings in (folder.settings, folder.config)}
    return _mbart_of(folder, target, fifty=any(name.startswith("MBart50") for name in names))


def _mbart_of(folder: TokenizerFolder, target: Path, *, fifty: bool) -> Description:
    """mBART-50: xx_XX x </s>, and the target's token forced. mBART-25: x </s> xx_XX, and the target's token first."""
    kind, control, tags = _fairseq(folder, target, MBART_TAG, MBART50_CODES if fifty else MBART_CODES)
    end = id_of("</s>", control, folder)
    languages = _tagged(tags)
    return Description(
        kind=kind,
        before=("source",) if fifty else (),
        after=(end,) if fifty else (end, "source"),
        prompt=(folder.start_id(), "target") if fifty else ("target",),
        control_ids=tuple(sorted(control.values())),
        unknown_id=id_of("<unk>", control, folder),
        source_languages=languages,
        target_languages=_forced(folder, languages),
    )


def _t5(folder: TokenizerFolder, target: Path) -> Description:
    """x </s>, after an instruction to translate if config.json has one."""
    kind: Kind = "tokenizers" if folder.has(LIBRARY_FILE) else "pieces"
    if kind == "tokenizers":
        control = copy_library(folder, target)
    else:
        control = copy_pieces(folder.find("spiece.model"), target, {}, shift=0)
    instructions = _instructions(folder.config.get("task_specific_params") or {})
    sources, targets = ({getattr(each, side) for each in instructions} for side in ("source", "target"))
    return dataclasses.replace(
        _started_by_padding(kind, control, folder),
        source_languages=tuple(map(Language, sorted(sources))) or UNKNOWN_LANGUAGES,
        target_languages=tuple(map(Language, sorted(targets))) or UNKNOWN_LANGUAGES,
        instructions=instructions,
    )


def _pegasus(folder: TokenizerFolder, target: Path) -> Description:
    """x </s>."""
    kind: Kind = "tokenizers" if folder.has(LIBRARY_FILE) else "pieces"
    if kind == "tokenizers":
        control = copy_library(folder, target)
    else:
        shift = int(folder.setting("offset", 103))
        special = {"<pad>": 0, "</s>": 1, "<mask_1>": 2, "<mask_2>": 3}
        special |= {f"<unk_{number}>": number + 2 for number in range(2, shift)}
        control = copy_pieces(folder.find("spiece.model"), target, special, shift)
    return _started_by_padding(kind, control, folder)


def _bart(folder: TokenizerFolder, target: Path) -> Description:
    """<s> x </s>, and often <s> forced."""
    before, after, control = as_processed(folder, target)
    return _of_one_language(before, after, control, folder, folder.prompt())


def _encoder(folder: TokenizerFolder, target: Path) -> Description:
    """[CLS] x [SEP], or other tokens from the file; no decoder."""
    before, after, control = as_processed(folder, target)
    return _of_one_language(before, after, control, folder, ())


FAMILIES: Mapping[str, Callable[[TokenizerFolder, Path], Description]] = {
    "bart": _bart,
    "bert": _encoder,
    "m2m100": _m2m100,
    "marian": _marian,
    "mbart": _mbart,
    "mbart50": partial(_mbart_of, fifty=True),
    "mt5": _t5,
    "nllb": _nllb,
    "pegasus": _pegasus,
    "roberta": _encoder,
    "t5": _t5,
}
"""Every importable family."""


# --- shared by families


def _fairseq(
    folder: TokenizerFolder, target: Path, tag: re.Pattern[str], codes: Sequence[str]
) -> tuple[Kind, dict[str, int], dict[str, int]]:
    """A tokenizer with four control tokens first and languages last: its kind, its control tokens, its languages."""
    if folder.has(LIBRARY_FILE):
        control = copy_library(folder, target)
        tags = {name: number for name, number in control.items() if tag.fullmatch(name)}
        kind: Kind = "tokenizers"
    else:
        kind, path = "pieces", folder.find("sentencepiece.bpe.model")
        listed = [name for name in folder.listed_tokens() if tag.fullmatch(name)] or list(codes)
        added = folder.added_tokens()
        first = open_pieces(path).vocab_size() + 1
        tags = {name: added.get(name, first + index) for index, name in enumerate(listed)}
        special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": first + len(tags)}
        control = copy_pieces(path, target, special | tags, shift=1)
    if not tags:
        raise ValueError(f"{folder.path}: the tokenizer's files list no languages")
    return kind, control, dict(sorted(tags.items(), key=lambda item: item[1]))


def _of_one_language(
    before: tuple[int, ...],
    after: tuple[int, ...],
    control: dict[str, int],
    folder: TokenizerFolder,
    prompt: tuple[int, ...],
) -> Description:
    unknown = control.get(str(folder.setting("unk_token", "<unk>")), control.get("[UNK]"))
    return Description(
        kind="tokenizers",
        before=before,
        after=after,
        prompt=prompt,
        control_ids=tuple(sorted({*control.values(), *before, *after})),
        unknown_id=unknown,
        source_languages=UNKNOWN_LANGUAGES,
        target_languages=UNKNOWN_LANGUAGES if prompt else (),
    )


def _started_by_padding(kind: Kind, control: dict[str, int], folder: TokenizerFolder) -> Description:
    """x </s>, with unknown languages; the decoder starts with padding unless the files say otherwise."""
    return Description(
        kind=kind,
        before=(),
        after=(id_of("</s>", control, folder),),
        prompt=folder.prompt(id_of("<pad>", control, folder)),
        control_ids=tuple(sorted(control.values())),
        unknown_id=id_of("<unk>", control, folder),
        source_languages=UNKNOWN_LANGUAGES,
        target_languages=UNKNOWN_LANGUAGES,
    )


def _control(ids: Mapping[str, int], tags: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*(ids[name] for name in ("<s>", "</s>", "<pad>", "<unk>") if name in ids), *tags}))


def _tagged(tags: Mapping[str, int], form: str = "{}", *, shortest: bool = True) -> tuple[Language, ...]:
    """Languages with a token, whose names are the family's own name and the token itself."""
    codes = bcp47_codes(tags, shortest=shortest)
    return tuple(
        Language(code, tuple(dict.fromkeys((name, form.format(name)))), tags[name]) for name, code in codes.items()
    )


def _forced(folder: TokenizerFolder, languages: tuple[Language, ...]) -> tuple[Language, ...]:
    """The target language that the checkpoint's own rules force; all languages if they force none."""
    forced = {folder.forced_id(), folder.given_start_id()}
    return tuple(language for language in languages if language.id in forced) or languages


def _instructions(tasks: Mapping[str, Any]) -> tuple[Instruction, ...]:
    found = []
    for name, task in tasks.items():
        match = re.fullmatch(r"translation_([a-z]{2,3})_to_([a-z]{2,3})", name)
        if match and isinstance(task, dict) and isinstance(task.get("prefix"), str):
            found.append(Instruction(match[1], match[2], task["prefix"]))
    return tuple(found)


def _languages_of_name(folder: str) -> tuple[str, str]:
    """Source and target language from a name such as opus-mt-en-fr; "" for another name."""
    match = re.fullmatch(r"opus-mt-(?:.*-)?([A-Za-z_]+)-([A-Za-z_]+)", folder)
    return (match[1], match[2]) if match else ("", "")


def _marian_languages(name: str) -> tuple[Language, ...]:
    """The languages in a name such as en, pt_br or cat_oci_spa; unknown for a group of languages, such as ROMANCE."""
    names = name.split("_") if re.fullmatch(r"[a-z]{2,3}(_[a-z]{3})+", name) else [name]
    if not all(re.fullmatch(r"[a-z]{2,3}(_[A-Za-z]{2,4})*", each) for each in names) or name in LANGUAGE_GROUPS:
        return UNKNOWN_LANGUAGES
    codes = bcp47_codes(names, shortest=False)
    return tuple(Language(code, () if each == code else (each,)) for each, code in codes.items())
