"""From the language that a caller names to one that the model has (BCP 47, looked up as RFC 4647 §3.4 says)."""

from collections.abc import Sequence

from dragoman.service.errors import UnknownLanguageError

MOST_SUBTAGS = 8
"""How many parts of a language's name are looked at one by one; a caller may send megabytes of them."""


def resolve_language(field: str, asked: str, offered: Sequence[str]) -> str:
    """The language out of `offered` that `asked` means.

    Case does not count, "_" stands for "-", and a language that is not there falls back to a shorter one that is:
    fr-FR to fr. None asked for means the only one there is. Raises UnknownLanguageError that names `field` and lists
    `offered`.
    """
    if not asked and len(offered) == 1:
        return offered[0]
    known = {language.casefold(): language for language in offered}
    subtags = asked.replace("_", "-").casefold().split("-", MOST_SUBTAGS)
    while subtags:
        language = known.get("-".join(subtags))
        if language is not None:
            return language
        subtags.pop()
    raise UnknownLanguageError(field, asked, offered)
