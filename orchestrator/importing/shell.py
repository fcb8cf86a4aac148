"""A shell's text as commands: quotes, continued lines, comments, assignments, `export`. Nothing is ever run.

Only what recipes use is understood. What would have to be run to be known (`$(...)`, backquotes) or is set nowhere
in the text is kept as it stands, and named in `Command.unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orchestrator.importing.values import Command, ImportUnreadable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./:-]{0,60}>")
_SEPARATORS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")
_PROMPT = re.compile(r"[ \t]*[$%#>][ \t]+(?=\S)")
_PLAIN = re.compile(r"[^\s;|&()<>\\'\"$`]+")
_QUOTED = re.compile(r"[^\\\"$`\n]+")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}")
_NAMED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
MOST_WORDS = 20_000
LONGEST_WORD = 64 << 10
"""Characters; Linux starts no program with an argument of more than 128 KiB."""
DEEPEST = 32


@dataclass(slots=True)
class _Word:
    text: str = ""
    given: bool = False
    """Whether there is a word at all: an empty pair of quotes is one."""
    assigns: bool = True
    """Whether it could be an assignment: its name was not quoted."""
    unknown: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    line: int = 1
    known: dict[str, str] = field(default_factory=dict)
    count: int = 0


def commands(text: str) -> list[Command]:
    """Every command of the text. Raises `ImportUnreadable` for quotes that do not end, and for monsters."""
    reader = _Reader(text.replace("\r\n", "\n"))
    found: list[Command] = []
    exported: dict[str, str] = {}
    while reader.at < len(reader.text):
        begin, words = _command(reader)
        command = _assemble(words, begin, reader, exported)
        if command is not None:
            found.append(command)
    return found


def _assemble(words: list[_Word], line: int, reader: _Reader, exported: dict[str, str]) -> Command | None:
    """Assignments off the front; a line of assignments alone sets them for what follows."""
    local: dict[str, str] = {}
    unknown: list[str] = []
    while words and words[0].assigns and (match := ASSIGNMENT.fullmatch(words[0].text)):
        local[match[1]] = match[2]
        unknown += words[0].unknown
        del words[0]
    if not words:
        # a variable that another command fills is unknown where it is used, not here
        reader.known.update(dict.fromkeys(local, unknown[0]) if unknown else local)
        return None
    if words[0].text in ("export", "set", "setenv") and not local:
        _export(words[1:], reader, exported)
        return None
    if words[0].text in ("sudo", "exec", "nohup", "time", "env") and len(words) > 1:
        del words[0]
        while words and (match := ASSIGNMENT.fullmatch(words[0].text)):
            local[match[1]] = match[2]
            del words[0]
    for word in words:
        unknown += word.unknown
    texts = tuple(word.text for word in words)
    return Command(texts, {**exported, **local}, line, tuple(dict.fromkeys(unknown))) if texts else None


def _export(words: list[_Word], reader: _Reader, exported: dict[str, str]) -> None:
    for word in words:
        match = ASSIGNMENT.fullmatch(word.text)
        if match is not None:
            exported[match[1]] = match[2]
            reader.known[match[1]] = match[2]


def _skip_prompt(reader: _Reader) -> None:
    """`$ ` before a command is somebody's prompt; `# ` could be too, and is taken for a comment."""
    prompt = _PROMPT.match(reader.text, reader.at)
    if prompt is not None and prompt[0].strip() != "#":
        reader.at = prompt.end()


def _command(reader: _Reader) -> tuple[int, list[_Word]]:
    """Words up to the next separator, and the line of the first."""
    words: list[_Word] = []
    begin = reader.line
    _skip_prompt(reader)
    while reader.at < len(reader.text):
        char = reader.text[reader.at]
        if char in " \t":
            reader.at += 1
        elif reader.text.startswith("\\\n", reader.at):
            reader.at += 2
            reader.line += 1
        elif char == "#":
            _skip_comment(reader)
        elif separator := next((s for s in _SEPARATORS if reader.text.startswith(s, reader.at)), None):
            reader.at += len(separator)
            reader.line += separator == "\n"
            if words:
                return begin, words
            begin = reader.line
            if separator == "\n":
                _skip_prompt(reader)
        elif _redirection(reader):
            continue
        else:
            begin = begin if words else reader.line
            words.append(_counted(reader))
    return begin, words


def _counted(reader: _Reader) -> _Word:
    reader.count += 1
    if reader.count > MOST_WORDS:
        raise ImportUnreadable(f"more than {MOST_WORDS} words are no recipe", line=reader.line)
    return _word(reader)


def _skip_comment(reader: _Reader) -> None:
    end = reader.text.find("\n", reader.at)
    reader.at = len(reader.text) if end < 0 else end


def _redirection(reader: _Reader) -> bool:
    """Skips `> FILE` and the like; `<target-model>` is a placeholder, not a file to read."""
    if _PLACEHOLDER.match(reader.text, reader.at):
        return False
    match = re.compile(r"\d?(<<<?|>>|>|<)&?-?[ \t]*").match(reader.text, reader.at)
    if match is None:
        return False
    if match[1] == "<<":
        raise ImportUnreadable("a here-document cannot be read", line=reader.line, hint="give its text as a file")
    reader.at = match.end()
    if reader.at < len(reader.text) and reader.text[reader.at] not in " \t\n;|&":
        _word(reader)
    return True


def _word(reader: _Reader) -> _Word:
    word = _Word()
    while reader.at < len(reader.text):
        _bounded(reader, word)
        char = reader.text[reader.at]
        plain = _PLAIN.match(reader.text, reader.at) or _PLACEHOLDER.match(reader.text, reader.at)
        if plain is not None:
            word.text += plain[0]
            reader.at = plain.end()
        elif char in " \t\n;|&()<>" and not (char == "(" and word.text.endswith("$")):
            break
        elif reader.text.startswith("\\\n", reader.at):
            reader.at += 2
            reader.line += 1
        elif char == "\\":
            word.text += reader.text[reader.at + 1 : reader.at + 2]
            reader.line += reader.text[reader.at + 1 : reader.at + 2] == "\n"
            reader.at += 2
        elif char == "'":
            word.text += _until(reader, "'")
            word.assigns = word.assigns and "=" in word.text
        elif char == '"':
            word.assigns = word.assigns and "=" in word.text
            _double(reader, word)
        elif char in "$`":
            _expansion(reader, word)
        else:  # white space that is none of the shell's
            word.text += char
            reader.at += 1
        word.given = True
    return word


def _bounded(reader: _Reader, word: _Word) -> None:
    if len(word.text) > LONGEST_WORD:
        raise ImportUnreadable(f"a word of more than {LONGEST_WORD} characters is no recipe", line=reader.line)


def _until(reader: _Reader, quote: str) -> str:
    end = reader.text.find(quote, reader.at + 1)
    if end < 0:
        raise ImportUnreadable(f"a {quote} has no end", line=reader.line, hint="close the quote")
    text = reader.text[reader.at + 1 : end]
    reader.line += text.count("\n")
    reader.at = end + 1
    return text


def _double(reader: _Reader, word: _Word) -> None:
    begin = reader.line
    reader.at += 1
    while reader.at < len(reader.text):
        char = reader.text[reader.at]
        if char == '"':
            reader.at += 1
            return
        if char == "\\" and reader.text[reader.at + 1 : reader.at + 2] in ("$", "`", '"', "\\", "\n"):
            escaped = reader.text[reader.at + 1]
            word.text += "" if escaped == "\n" else escaped
            reader.line += escaped == "\n"
            reader.at += 2
        elif char in "$`":
            _expansion(reader, word)
        else:
            plain = _QUOTED.match(reader.text, reader.at)
            word.text += char if plain is None else plain[0]
            reader.line += char == "\n"
            reader.at += 1 if plain is None else len(plain[0])
    raise ImportUnreadable('a " has no end', line=begin, hint="close the quote")


def _expansion(reader: _Reader, word: _Word) -> None:
    """`$NAME` and `${NAME:-default}` from what the text set; `$(...)` and backquotes are kept and named."""
    begin = reader.at
    if reader.text.startswith("$(", begin) or reader.text[begin] == "`":
        end = _end_of_substitution(reader)
        what = reader.text[begin:end]
        reader.at = end
        reader.line += what.count("\n")
        word.text += what
        word.unknown.append(what)
        return
    braced = _BRACED.match(reader.text, begin)
    plain = _NAMED.match(reader.text, begin)
    match = braced or plain
    if match is None:
        word.text += "$"
        reader.at += 1
        return
    default = braced[2] if braced is not None else None
    value = reader.known.get(match[1], default)
    reader.at = match.end()
    if value is None:
        word.text += match[0]
        if match[1] not in ("HOME", "PWD", "USER", "UID"):
            word.unknown.append(match[0])
    else:
        word.text += value
        if value.startswith(("$(", "`")):
            word.unknown.append(value)


def _end_of_substitution(reader: _Reader) -> int:
    text, at = reader.text, reader.at
    if text[at] == "`":
        end = text.find("`", at + 1)
        if end < 0:
            raise ImportUnreadable("a ` has no end", line=reader.line)
        return end + 1
    depth, at = 0, at + 1
    while at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth > DEEPEST:
            raise ImportUnreadable("substitutions are nested too deeply", line=reader.line)
        at += 1
        if depth == 0:
            return at
    raise ImportUnreadable("a $( has no end", line=reader.line)
