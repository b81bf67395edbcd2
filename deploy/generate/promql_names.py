"""The metrics that a PromQL expression names."""

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_BRACKETS = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_KEYWORDS = frozenset(
    {"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"}
)


def names_in(expression: str) -> tuple[str, ...]:
    """The series names in `expression`, each once, in order of appearance."""
    bare = _BRACKETS.sub(" ", _LABEL_LIST.sub(" ", _STRING.sub('""', expression)))
    return tuple(dict.fromkeys(name for name in _NAME.findall(bare) if name not in _KEYWORDS))
