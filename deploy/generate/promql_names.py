"""PromQL, as far as it must be understood to say which metrics an expression names."""

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_BRACKETS = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_WORDS = frozenset(
    {"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"}
)


def names_in(expression: str) -> tuple[str, ...]:
    """The series that `expression` names, each once, in their order."""
    bare = _BRACKETS.sub(" ", _LABEL_LIST.sub(" ", _STRING.sub('""', expression)))
    return tuple(dict.fromkeys(name for name in _NAME.findall(bare) if name not in _WORDS))
