"""Native extensions only: everything else about the distribution is in pyproject.toml.

TAILRACE_STRICT_BUILD=1 turns compiler and Cython warnings into errors (lint; in CI every build).
TAILRACE_SANITIZE=address,undefined builds with those sanitizers (``make sanitize``; never in place).
"""

import os
from pathlib import Path

import Cython.Compiler.Options
from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
KERNEL = Path("services/tailrace/kernel")
STRICT = os.environ.get("TAILRACE_STRICT_BUILD") == "1"
SANITIZERS = os.environ.get("TAILRACE_SANITIZE", "")

compile_args = ["-O3", "-std=c11"]
link_args: list[str] = []
if STRICT:
    compile_args += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    Cython.Compiler.Options.warning_errors = True
if SANITIZERS:
    compile_args += [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
    link_args += [f"-fsanitize={SANITIZERS}"]

extensions = [
    Extension(
        f"tailrace.kernel.{source.stem}",
        [str(KERNEL / source.name)],
        include_dirs=[str(KERNEL)],
        depends=sorted(str(KERNEL / header.name) for header in (ROOT / KERNEL).glob("*.h")),
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for source in sorted((ROOT / KERNEL).glob("*.pyx"))
]

# A strict build keeps translations of its own: each of them was made without a warning, or it was not made.
build_dir = "build/cython-strict" if STRICT else "build/cython"

setup(ext_modules=cythonize(extensions, language_level=3, build_dir=build_dir))
