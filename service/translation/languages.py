"""From the language that a caller names to one that the model has (BCP 47, looked up as RFC 4647 §3.4 says)."""

from collections.abc import Mapping, Sequence

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.service.errors import UnknownLanguageError

MAX_SUBTAGS = 8
"""How many parts of a language's name are looked at one by one; a caller may send megabytes of them."""

NO_NAMES: Mapping[str, str] = {}


def resolve_language(field: str, asked: str, offered: Sequence[str], native: Mapping[str, str] = NO_NAMES) -> str:
    """The language out of `offered` that `asked` means.

    Case does not count, "_" stands for "-", and a language that is not there falls back to a shorter one that is:
    fr-FR to fr. `native` has other names, such as fra_Latn, of some that may be offered. None asked for means the only
    one there is; where the model has one that nobody knows, any other means that one. Raises UnknownLanguageError that
    names `field` and lists `offered`.
    """
    if not asked and len(offered) == 1:
        return offered[0]
    known = {_plain(name): language for name, language in native.items() if language in offered}
    known |= {_plain(language): language for language in offered}
    subtags = _plain(asked).split("-", MAX_SUBTAGS)
    while subtags:
        language = known.get("-".join(subtags))
        if language is not None:
            return language
        subtags.pop()
    if asked and UNDETERMINED in offered:
        return UNDETERMINED
    raise UnknownLanguageError(field, asked, offered)


def _plain(name: str) -> str:
    return name.replace("_", "-").casefold()
