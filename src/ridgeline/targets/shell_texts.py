"""Turn commands of a shell script that print, fill in or write text into that text: `cat`, `echo`, `sed` and others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.targets.run_files import Around
from ridgeline.targets.shell_expand import Script, bounded, expand, is_open, known, mark, shown
from ridgeline.targets.shell_lexer import Word
from ridgeline.targets.shell_parse import Chain, Command


@dataclass(frozen=True, slots=True)
class ShellTexts:
    """Texts that a script makes, kept in `script.texts` by the name it gives them, and files that it names."""

    script: Script
    around: Around

    def pipe(self, chain: Chain) -> None:
        """`sed s/A/B/ template | sed ... > file` and the like: how scripts fill in a configuration."""
        text: str | None = None
        for joint, statement in chain.parts:
            if joint not in ("", "|") or not isinstance(statement, Command):
                return
            text = self.text_of(statement, text)
            if text is None:
                return
            self.write(statement, text)

    def text_of(self, command: Command, given: str | None) -> str | None:
        """What `echo`, `cat` or a plain `sed` prints."""
        here = next((word for sign, word in command.redirections if sign in ("<<", "<<-")), None)
        words = [value for word in command.words if isinstance(word, Word) for value in expand(self.script, word)]
        if not words:
            return None
        if words[0] == "echo":
            return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
        if words[0] == "cat":
            if here is not None:
                return "".join(expand(self.script, here, split=False))
            return given if len(words) == 1 else self.nearby(words[1])
        if words[0] == "sed":
            return self.sed(words[1:], given)
        if words[0] == "envsubst":
            source = next((word for sign, word in command.redirections if sign == "<"), None)
            text = self.nearby("".join(expand(self.script, source, split=False))) if source is not None else given
            return None if text is None else re.sub(r"\$\{?(\w+)\}?", self.substituted, text)
        return None

    def substituted(self, found: re.Match[str]) -> str:
        values = self.script.variables.get(found.group(1))
        return known(" ".join(values)) if values is not None else found.group(0)

    def sed(self, words: Sequence[str], given: str | None) -> str | None:
        swaps = [word for word in words if re.fullmatch(r"s(.).+?\1.*?\1g?", word, re.DOTALL)]
        files = [word for word in words if word not in swaps and not word.startswith("-")]
        text = self.nearby(files[0]) if files else given
        for swap in swaps if text is not None else ():
            _, old, new, *_rest = swap.split(swap[1])
            text = (text or "").replace(old.replace("\\", ""), new)
        return text if swaps else None

    def write(self, command: Command, text: str) -> None:
        for sign, word in command.redirections:
            if sign in (">", ">>", "&>"):
                name = shown("".join(expand(self.script, word, split=False)))
                before = self.script.texts.get(name, "") if sign == ">>" else ""
                self.script.texts[name] = bounded([before + text])[0]

    def read(self, values: Sequence[str], command: Command) -> bool | None:
        """`IFS=, read -ra NAME <<< "$LIST"`: a text split into an array or into names; None for other input."""
        here = next((word for sign, word in command.redirections if sign in ("<<<", "<<", "<<-")), None)
        ends = {at + 1 for at, word in enumerate(values) if word.startswith("-") and word.endswith("d")}
        names = [word for at, word in enumerate(values) if at and not word.startswith("-") and at not in ends]
        names = [name for name in names if name.isidentifier()]
        sign = "".join(self.script.variables.get("IFS", [""])).strip(" ") or None
        text = "".join(expand(self.script, here, split=False)) if here is not None else None
        if text is None or is_open(text) or (sign is not None and len(sign) != 1):
            self.script.variables |= {name: [mark(name)] for name in names}
        elif any(word.startswith("-") and "a" in word for word in values[1:]):
            self.script.variables |= {name: bounded(text.split(sign)) for name in names[:1]}
        else:
            parts = text.split(sign, len(names) - 1) if len(names) > 1 else [text.strip()]
            self.script.variables |= {name: [part] for name, part in zip(names, parts, strict=False)}
        return None if here is None else True

    def nearby(self, name: str) -> str | None:
        """The text of a file that the script names: one it wrote, or one of its checkout."""
        if shown(name) in self.script.texts:
            return self.script.texts[shown(name)]
        return self.around.named(shown(name))
