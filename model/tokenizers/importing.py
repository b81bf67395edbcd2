"""From the tokenizer's files of a Hugging Face folder to those that `open_tokenizer` reads.

Each family has a function of its own here, which says where its special tokens stand. `Folder` reads the files.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from sentencepiece import SentencePieceProcessor
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from dragoman.model.tokenizers.described import open_described
from dragoman.model.tokenizers.description import Description, Instruction, Kind, Language
from dragoman.model.tokenizers.languages import (
    LANGUAGE_GROUPS,
    M2M100_CODES,
    MBART50_CODES,
    MBART_CODES,
    UNDETERMINED,
    WMT21_CODES,
    bcp47_codes,
)
from dragoman.model.tokenizers.library import LIBRARY_FILE, open_library
from dragoman.model.tokenizers.pieces import (
    SOURCE_FILE,
    TARGET_FILE,
    TARGET_VOCABULARY_FILE,
    VOCABULARY_FILE,
    open_pieces,
    read_vocabulary,
    write_vocabulary,
)
from dragoman.model.tokenizers.protocol import Tokenizer

COVERAGE = 0.75
"""The part of a SentencePiece model's pieces that its vocabulary must have, or it is another model's."""

UNREACHABLE = "\uffff"
"""Put before a control token's name where text could otherwise be taken for it; no text holds this character."""

SPECIAL_SETTINGS = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")

UNKNOWN_LANGUAGES = (Language(UNDETERMINED),)

TAG = re.compile(r">>(.+)<<")
M2M100_TAG = re.compile(r"__([a-z]{2,3})__")
NLLB_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
MBART_TAG = re.compile(r"[a-z]{2}_[A-Z]{2}")


def import_tokenizer(family: str, source: Path, target: Path) -> Tokenizer:
    """Write into the new folder `target` what `open_tokenizer` needs, from a Hugging Face folder `source`.

    Raises FileNotFoundError or ValueError that names the file at fault, and ValueError for a family that is not known.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(sorted(FAMILIES))}, is {family!r}")
    target.mkdir(parents=True)
    FAMILIES[family](Folder(source), target).save(target)
    return open_described(target)


class Folder:
    """What the tokenizer's files of a checkpoint say, and the little of its configuration that concerns them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self.read("config.json")
        # Where there is no such file, config.json has the rules of decoding as well.
        self.rules = _given(self.read("generation_config.json")) if self.has("generation_config.json") else self.config
        self.settings = self.read("special_tokens_map.json") | self.read("tokenizer_config.json")

    def find(self, *names: str) -> Path:
        """The first of those files that is there. Raises FileNotFoundError."""
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        raise FileNotFoundError(f"{self.path}: must hold {' or '.join(names)}")

    def has(self, *names: str) -> bool:
        """Whether all of those files are there."""
        return all((self.path / name).is_file() for name in names)

    def setting(self, name: str, otherwise: Any) -> Any:
        """A setting of tokenizer_config.json; a token is given by its text."""
        value = self.settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return otherwise if value is None else value

    def forced_id(self) -> int | None:
        """The first token of every output, whatever the model chooses, if the rules of decoding force one."""
        return self._token("forced_bos_token_id", self.rules.get("forced_bos_token_id"))

    def given_start_id(self) -> int | None:
        """What the decoder is fed first, if the files say."""
        name = "decoder_start_token_id"
        return self._token(name, self.rules.get(name, self.config.get(name)))

    def start_id(self, otherwise: int | None = None) -> int:
        """The same. Raises ValueError where it is neither given nor known `otherwise`."""
        found = self.given_start_id()
        found = otherwise if found is None else found
        if found is None:
            raise ValueError(f"{self.path / 'config.json'}: decoder_start_token_id is missing")
        return found

    def _token(self, name: str, value: Any) -> int | None:
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        if value is not None and not isinstance(value, int):
            raise ValueError(f"{self.path}: {name} must be one token, is {value!r}")
        return value

    def added_tokens(self) -> dict[str, int]:
        """Tokens beside the vocabulary and their ids, where the files list them."""
        found: dict[str, int] = dict(self.read("added_tokens.json"))
        for number, token in self.settings.get("added_tokens_decoder", {}).items():
            found[token["content"]] = int(number)
        return found

    def listed_tokens(self) -> list[str]:
        """Special tokens that the files list without an id, in their order."""
        for name in ("extra_special_tokens", "additional_special_tokens"):
            tokens = self.settings.get(name)
            if isinstance(tokens, list) and tokens:
                return [token if isinstance(token, str) else token["content"] for token in tokens]
        return []

    def special_tokens(self) -> set[str]:
        """Special tokens that tokenizer_config.json names."""
        named = {str(self.setting(name, "")) for name in SPECIAL_SETTINGS}
        return (named | set(self.listed_tokens())) - {""}

    def read(self, name: str) -> dict[str, Any]:
        """A file of JSON; nothing where it is missing. Raises ValueError with its name."""
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: not JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path}: must hold a JSON object")
        return found


# --- families on SentencePiece alone


def _marian(folder: Folder, target: Path) -> Description:
    """x </s>; a checkpoint of several targets wants >>xxx<< first. Source and target have a model each."""
    ids = read_vocabulary(folder.find("vocab.json"))
    two = bool(folder.setting("separate_vocabs", False))
    target_ids = read_vocabulary(folder.find("target_vocab.json")) if two else ids
    for name, new, vocabulary in (("source.spm", SOURCE_FILE, ids), ("target.spm", TARGET_FILE, target_ids)):
        _check_coverage(folder.find(name), vocabulary)
        shutil.copyfile(folder.find(name), target / new)
    write_vocabulary(target / VOCABULARY_FILE, ids)
    if two:
        write_vocabulary(target / TARGET_VOCABULARY_FILE, target_ids)
    tags = {} if two else {match[1]: number for token, number in ids.items() if (match := TAG.fullmatch(token))}
    names = [str(folder.setting(name, "")) for name in ("source_lang", "target_lang")]
    if not all(names):
        names = list(_languages_of_name(folder.path.resolve().name))
    return Description(
        kind="pieces",
        before=("target",) if tags else (),
        after=(_id_of("</s>", ids, folder),),
        prompt=(folder.start_id(_id_of("<pad>", target_ids, folder)),),
        control_ids=_control(ids, tags.values()),
        target_control_ids=_control(target_ids, ()) if two else None,
        unknown_id=_id_of("<unk>", ids, folder),
        source_languages=_marian_languages(names[0]),
        target_languages=_tagged(tags, ">>{}<<", shortest=False) if tags else _marian_languages(names[1]),
    )


def _m2m100(folder: Folder, target: Path) -> Description:
    """__xx__ x </s>, and the target's token forced."""
    if not folder.has("vocab.json"):
        return _nllb(folder, target)
    ids = read_vocabulary(folder.find("vocab.json"))
    pieces = folder.find("sentencepiece.bpe.model")
    _check_coverage(pieces, ids)
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
        after=(_id_of("</s>", ids, folder),),
        prompt=(folder.start_id(), "target"),
        control_ids=_control(ids, tags.values()),
        unknown_id=_id_of("<unk>", ids, folder),
        source_languages=_tagged(tags, "__{}__"),
        target_languages=_forced(folder, _tagged(tags, "__{}__")),
    )


# --- families on the tokenizers library, or on a SentencePiece model whose ids they shift


def _nllb(folder: Folder, target: Path) -> Description:
    """xxx_Xxxx x </s>, of old x </s> xxx_Xxxx, and the target's token forced."""
    kind, control, tags = _fairseq(folder, target, NLLB_TAG, ())
    end = control["</s>"]
    legacy = bool(folder.setting("legacy_behaviour", False))
    languages = _tagged(tags)
    return Description(
        kind=kind,
        before=() if legacy else ("source",),
        after=(end, "source") if legacy else (end,),
        prompt=(folder.start_id(), "target"),
        control_ids=tuple(sorted(control.values())),
        unknown_id=control["<unk>"],
        source_languages=languages,
        target_languages=_forced(folder, languages),
    )


def _mbart(folder: Folder, target: Path) -> Description:
    """Either kind of mBART: their configurations are alike, their tokenizers are not."""
    names = {str(settings.get("tokenizer_class", "")) for settings in (folder.settings, folder.config)}
    return _mbart_of(folder, target, fifty=any(name.startswith("MBart50") for name in names))


def _mbart_of(folder: Folder, target: Path, *, fifty: bool) -> Description:
    """mBART-50: xx_XX x </s>, and the target's token forced. mBART-25: x </s> xx_XX, and begun with the target's."""
    kind, control, tags = _fairseq(folder, target, MBART_TAG, MBART50_CODES if fifty else MBART_CODES)
    end = control["</s>"]
    languages = _tagged(tags)
    return Description(
        kind=kind,
        before=("source",) if fifty else (),
        after=(end,) if fifty else (end, "source"),
        prompt=(folder.start_id(), "target") if fifty else ("target",),
        control_ids=tuple(sorted(control.values())),
        unknown_id=control["<unk>"],
        source_languages=languages,
        target_languages=_forced(folder, languages),
    )


def _t5(folder: Folder, target: Path) -> Description:
    """x </s>, after words that ask for the translation where config.json has them."""
    kind: Kind = "tokenizers" if folder.has(LIBRARY_FILE) else "pieces"
    if kind == "tokenizers":
        control = _copy_library(folder, target)
    else:
        control = _copy_pieces(folder.find("spiece.model"), target, {}, shift=0)
    instructions = _instructions(folder.config.get("task_specific_params") or {})
    sources, targets = ({getattr(each, side) for each in instructions} for side in ("source", "target"))
    return Description(
        kind=kind,
        before=(),
        after=(control["</s>"],),
        prompt=(folder.start_id(control["<pad>"]),),
        control_ids=tuple(sorted(control.values())),
        unknown_id=control["<unk>"],
        source_languages=tuple(map(Language, sorted(sources))) or UNKNOWN_LANGUAGES,
        target_languages=tuple(map(Language, sorted(targets))) or UNKNOWN_LANGUAGES,
        instructions=instructions,
    )


def _pegasus(folder: Folder, target: Path) -> Description:
    """x </s>."""
    kind: Kind = "tokenizers" if folder.has(LIBRARY_FILE) else "pieces"
    if kind == "tokenizers":
        control = _copy_library(folder, target)
    else:
        shift = int(folder.setting("offset", 103))
        special = {"<pad>": 0, "</s>": 1, "<mask_1>": 2, "<mask_2>": 3}
        special |= {f"<unk_{number}>": number + 2 for number in range(2, shift)}
        control = _copy_pieces(folder.find("spiece.model"), target, special, shift)
    return Description(
        kind=kind,
        before=(),
        after=(control["</s>"],),
        prompt=(folder.start_id(control["<pad>"]),),
        control_ids=tuple(sorted(control.values())),
        unknown_id=control["<unk>"],
        source_languages=UNKNOWN_LANGUAGES,
        target_languages=UNKNOWN_LANGUAGES,
    )


def _bart(folder: Folder, target: Path) -> Description:
    """<s> x </s>, and often <s> forced."""
    before, after, control = _as_processed(folder, target)
    start, forced = folder.start_id(), folder.forced_id()
    prompt = (start,) if forced is None else (start, forced)
    return _of_one_language(before, after, control, folder, prompt)


def _encoder(folder: Folder, target: Path) -> Description:
    """[CLS] x [SEP], or whatever the file says; no decoder."""
    before, after, control = _as_processed(folder, target)
    return _of_one_language(before, after, control, folder, ())


FAMILIES: Mapping[str, Callable[[Folder, Path], Description]] = {
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
"""Every family that can be imported."""


# --- what they share


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _check_coverage(path: Path, vocabulary: Mapping[str, int]) -> None:
    """Raise ValueError for a SentencePiece model whose pieces are not those of the vocabulary."""
    model = open_pieces(path)
    pieces = [model.id_to_piece(number) for number in range(model.vocab_size()) if _is_text(model, number)]
    known = sum(piece in vocabulary for piece in pieces)
    if known < COVERAGE * len(pieces):
        raise ValueError(f"{path}: only {known} of its {len(pieces)} pieces stand in the vocabulary: it is another's")


def _is_text(model: SentencePieceProcessor, number: int) -> bool:
    return not (model.is_control(number) or model.is_unknown(number) or model.is_unused(number))


def _copy_pieces(path: Path, target: Path, special: Mapping[str, int], shift: int) -> dict[str, int]:
    """Copy a model whose ids are `shift` less than the checkpoint's, but for `special`; give every control token."""
    model = open_pieces(path)
    shutil.copyfile(path, target / SOURCE_FILE)
    names = {model.id_to_piece(number): number for number in range(model.vocab_size())}
    control = {name: number + shift for name, number in names.items() if not _is_text(model, number)} | dict(special)
    pieces = {name: number + shift for name, number in names.items() if _is_text(model, number)}
    write_vocabulary(target / VOCABULARY_FILE, {**pieces, **control})
    return control


def _copy_library(folder: Folder, target: Path) -> dict[str, int]:
    """Copy a tokenizer.json, rid of all that would make text a control token; give every control token."""
    path = folder.find(LIBRARY_FILE)
    content = folder.read(LIBRARY_FILE)
    return _write_library(content, folder, target, path)


def _write_library(content: dict[str, Any], folder: Folder, target: Path, path: Path) -> dict[str, int]:
    try:
        added, vocabulary = content["added_tokens"], content["model"]["vocab"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: must hold a model with its vocabulary, and added_tokens") from error
    ids = (
        {piece: number for number, (piece, _) in enumerate(vocabulary)} if isinstance(vocabulary, list) else vocabulary
    )
    known = {**ids, **{token["content"]: token["id"] for token in added}}
    names = {token["content"] for token in added if token["special"]} | folder.special_tokens()
    control = {name: known[name] for name in names if name in known}
    if isinstance(vocabulary, list):
        # The library finds such pieces in text as it finds any other.
        for name in control.keys() & ids.keys():
            vocabulary[ids[name]][0] = UNREACHABLE + name
    kept = [token for token in added if token["content"] not in control]
    stripped = {**content, "added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
    (target / LIBRARY_FILE).write_text(json.dumps(stripped, ensure_ascii=False) + "\n", encoding="utf-8")
    library = open_library(target / LIBRARY_FILE)
    for token in kept:
        if library.token_to_id(token["content"]) != token["id"]:
            raise ValueError(f"{path}: the added token {token['content']!r} cannot keep its id {token['id']}")
    return control


def _fairseq(
    folder: Folder, target: Path, tag: re.Pattern[str], codes: Sequence[str]
) -> tuple[Kind, dict[str, int], dict[str, int]]:
    """A tokenizer with four control tokens first and languages last: its kind, its control tokens, its languages."""
    if folder.has(LIBRARY_FILE):
        control = _copy_library(folder, target)
        tags = {name: number for name, number in control.items() if tag.fullmatch(name)}
        kind: Kind = "tokenizers"
    else:
        kind, path = "pieces", folder.find("sentencepiece.bpe.model")
        listed = [name for name in folder.listed_tokens() if tag.fullmatch(name)] or list(codes)
        added = folder.added_tokens()
        first = open_pieces(path).vocab_size() + 1
        tags = {name: added.get(name, first + index) for index, name in enumerate(listed)}
        special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": first + len(tags)}
        control = _copy_pieces(path, target, special | tags, shift=1)
    if not tags:
        raise ValueError(f"{folder.path}: the tokenizer's files list no language")
    return kind, control, dict(sorted(tags.items(), key=lambda item: item[1]))


def _as_processed(folder: Folder, target: Path) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """What tokenizer.json puts before and after a text, and every control token."""
    path, content = _library_content(folder)
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    for number in range(library.get_vocab_size()):
        found = library.encode(library.decode([number]))
        body = [index for index, special in enumerate(found.special_tokens_mask) if not special]
        if body:
            control = _write_library(content, folder, target, path)
            return tuple(found.ids[: body[0]]), tuple(found.ids[body[-1] + 1 :]), control
    raise ValueError(f"{path}: no piece of its vocabulary is a text")


def _library_content(folder: Folder) -> tuple[Path, dict[str, Any]]:
    """The content of tokenizer.json, made where only the older files are there; and the file it comes from."""
    if folder.has(LIBRARY_FILE):
        return folder.find(LIBRARY_FILE), folder.read(LIBRARY_FILE)
    if folder.has("vocab.txt"):
        path, made = folder.find("vocab.txt"), _word_pieces(folder)
    else:
        path, made = folder.find("vocab.json"), _byte_pairs(folder)
    content: dict[str, Any] = json.loads(made.to_str())
    return path, content


def _word_pieces(folder: Folder) -> tokenizers.Tokenizer:
    """BERT's, from vocab.txt."""
    lines = folder.find("vocab.txt").read_text(encoding="utf-8").split("\n")
    ids = {line: number for number, line in enumerate(lines) if line}
    unknown, first, last = (
        str(folder.setting(name, default))
        for name, default in (("unk_token", "[UNK]"), ("cls_token", "[CLS]"), ("sep_token", "[SEP]"))
    )
    made = tokenizers.Tokenizer(WordPiece(ids, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(folder.setting("tokenize_chinese_chars", True)),
        strip_accents=folder.settings.get("strip_accents"),
        lowercase=bool(folder.setting("do_lower_case", True)),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(name, _id_of(name, ids, folder)) for name in (first, last)],
    )
    return made


def _byte_pairs(folder: Folder) -> tokenizers.Tokenizer:
    """BART's and RoBERTa's, from vocab.json and merges.txt."""
    ids = read_vocabulary(folder.find("vocab.json"))
    lines = folder.find("merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [(pair[0], pair[1]) for line in lines if len(pair := line.split(" ")) == 2 and pair[0] != "#version:"]
    made = tokenizers.Tokenizer(BPE(ids, merges))
    prefix = bool(folder.setting("add_prefix_space", False))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    first, last = (
        str(folder.setting(name, default)) for name, default in (("cls_token", "<s>"), ("sep_token", "</s>"))
    )
    made.post_processor = processors.RobertaProcessing(
        (last, _id_of(last, ids, folder)), (first, _id_of(first, ids, folder)), add_prefix_space=prefix
    )
    return made


def _of_one_language(
    before: tuple[int, ...], after: tuple[int, ...], control: dict[str, int], folder: Folder, prompt: tuple[int, ...]
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


def _id_of(token: str, ids: Mapping[str, int], folder: Folder) -> int:
    if token not in ids:
        raise ValueError(f"{folder.path}: the vocabulary has no {token}")
    return ids[token]


def _control(ids: Mapping[str, int], tags: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*(ids[name] for name in ("<s>", "</s>", "<pad>", "<unk>") if name in ids), *tags}))


def _tagged(tags: Mapping[str, int], form: str = "{}", *, shortest: bool = True) -> tuple[Language, ...]:
    """Languages that have a token, under the family's name for them and the token itself."""
    codes = bcp47_codes(tags, shortest=shortest)
    return tuple(
        Language(code, tuple(dict.fromkeys((name, form.format(name)))), tags[name]) for name, code in codes.items()
    )


def _forced(folder: Folder, languages: tuple[Language, ...]) -> tuple[Language, ...]:
    """The one target that the checkpoint's own rules force, if they force one."""
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
    """Source and target out of a name such as opus-mt-en-fr."""
    match = re.fullmatch(r"opus-mt-(?:.*-)?([A-Za-z_]+)-([A-Za-z_]+)", folder)
    return (match[1], match[2]) if match else ("", "")


def _marian_languages(name: str) -> tuple[Language, ...]:
    """Of a name such as en, pt_br or cat_oci_spa; unknown where it stands for a group, such as ROMANCE."""
    names = name.split("_") if re.fullmatch(r"[a-z]{2,3}(_[a-z]{3})+", name) else [name]
    if not all(re.fullmatch(r"[a-z]{2,3}(_[A-Za-z]{2,4})*", each) for each in names) or name in LANGUAGE_GROUPS:
        return UNKNOWN_LANGUAGES
    codes = bcp47_codes(names, shortest=False)
    return tuple(Language(code, () if each == code else (each,)) for each, code in codes.items())
