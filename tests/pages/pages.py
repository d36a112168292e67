"""The blocks of README.md and docs/, and how their code is run and compared with what they show.

A block whose first line is ``# some/file.py`` shows a file; all other Python blocks of a page are
one program, whose ``print`` calls have what they print beside them, as comments.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]


def blocks(page: str) -> list[tuple[str, str | None, str]]:
    """Return (language, file shown or None, code) of each block of a page."""
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        first, _, rest = code.partition("\n")
        shown = re.fullmatch(r"(?:# |/\* )([\w./]+\.(?:py|toml|c))(?: \*/)?", first)
        found.append((language, shown[1], rest) if shown else (language, None, code))
    return found


def code_of(page: str) -> str:
    return "\n".join(
        block for language, shown, block in blocks(page) if language == "python" and not shown
    )


RUN = """
import json, sys
printed = {}
def record(*values, sep=" "):
    text = sep.join(map(str, values))
    printed.setdefault(sys._getframe(1).f_lineno, []).extend(text.split("\\n"))
exec(compile(sys.stdin.read(), "the page", "exec"), {"__name__": "__main__", "print": record})
json.dump(printed, sys.stdout)
"""


def printed_by(
    code: str, folder: Path, python: str | Path, env: Mapping[str, str]
) -> dict[int, list[str]]:
    """Return what code prints, by the line in which the call of `print` begins."""
    done = subprocess.run(
        [python, "-W", "error", "-c", RUN],
        input=code,
        cwd=folder,
        env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {int(line): texts for line, texts in json.loads(done.stdout).items()}


def shown_in(code: str) -> dict[int, list[str]]:
    """Return the comments at the end of every `print`, and alone on the lines that follow it."""
    comments = {
        token.start[0]: token
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            line = node.end_lineno
            texts = [comments[line].string] if line in comments else []
            while (after := comments.get(line := line + 1)) and after.line.lstrip()[0] == "#":
                texts.append(after.string)
            found[node.lineno] = [text.removeprefix("#").removeprefix(" ") for text in texts]
    return found


def differences(code: str, folder: Path, python: str | Path, env: Mapping[str, str]) -> list[str]:
    """Return where what is shown beside a `print` is not what it prints."""
    printed, found = printed_by(code, folder, python, env), []
    for line, shown in shown_in(code).items():
        texts = printed.get(line, [])
        # One line may be explained: ``# 1: one host now``.
        explained = len(texts) == len(shown) == 1 and shown[0].startswith(f"{texts[0]}: ")
        if texts != shown and not explained:
            found.append(f"line {line} shows {shown}, but prints {texts}")
    return found
