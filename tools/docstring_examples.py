"""Show the doctests of docstrings as code in the documentation: an extension of griffe, named in mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.M)


class DocstringExamples(griffe.Extension):
    """Put each doctest, with what it prints, into a block of code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
