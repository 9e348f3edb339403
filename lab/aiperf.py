"""Install aiperf, NVIDIA's load generator, in a virtual environment of its own in the cache.

It pins libraries that tokenslo has in other versions.  The environment takes over 1 GB.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lab.toolchain import InstallError, Progress, UnavailableProgram, install, run

_VERSION = "0.13.0"
# aiperf's own tokenizer needs a download at its first use.
_TOKENIZER = """\
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = {f"w{number}": number for number in range(2000)}
made = Tokenizer(models.WordLevel({**words, "[UNK]": 2000}, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(sys.argv[1])
"""


def program(progress: Progress) -> Path:
    """Return the path of aiperf: on PATH, else installed by pip.

    Raises UnavailableProgram if pip cannot install it.
    """
    if found := shutil.which("aiperf"):
        return Path(found).resolve()

    def build(folder: Path) -> None:
        progress(f"aiperf: installing {_VERSION} with pip")
        try:
            run("aiperf", [sys.executable, "-m", "venv", folder])
            pip: list[str | Path] = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
            run("aiperf", [*pip, f"aiperf=={_VERSION}"])
        except InstallError as error:
            raise UnavailableProgram("aiperf", str(error), "put aiperf on PATH") from None
        # pip's script has the path of this folder, which is renamed at the end.
        script = folder / "bin/aiperf"
        script.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m aiperf "$@"\n')

    return install(f"aiperf-{_VERSION}", build, progress) / "bin/aiperf"


def write_tokenizer(aiperf: Path, folder: Path) -> None:
    """Write a tokenizer that has one token per word, with the libraries of aiperf."""
    run("aiperf", [aiperf.with_name("python"), "-c", _TOKENIZER, folder])
