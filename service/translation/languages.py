"""Resolves the language named by a caller to one of the model's own (BCP 47 lookup, RFC 4647 section 3.4)."""

from collections.abc import Mapping, Sequence

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.service.errors import UnknownLanguageError

MAX_SUBTAGS = 8
"""Maximum number of subtags tried one by one; a caller may send megabytes of them."""

NO_NAMES: Mapping[str, str] = {}


def resolve_language(field: str, requested: str, offered: Sequence[str], native: Mapping[str, str] = NO_NAMES) -> str:
    """The language out of `offered` that `requested` stands for.

    Case is ignored, "_" equals "-", and a tag falls back to its shorter prefixes: fr-FR to fr. `native` maps other
    codes, such as fra_Latn, to languages that may be in `offered`. An empty `requested` stands for the only language
    offered. A model of an undetermined language takes any request that matches no other.

    Raises UnknownLanguageError that names `field` and lists `offered`.
    """
    if not requested and len(offered) == 1:
        return offered[0]
    known = {_normalized(code): language for code, language in native.items() if language in offered}
    known |= {_normalized(language): language for language in offered}
    subtags = _normalized(requested).split("-", MAX_SUBTAGS)
    while subtags:
        language = known.get("-".join(subtags))
        if language is not None:
            return language
        subtags.pop()
    if requested and UNDETERMINED in offered:
        return UNDETERMINED
    raise UnknownLanguageError(field, requested, offered)


def _normalized(tag: str) -> str:
    return tag.replace("_", "-").casefold()
