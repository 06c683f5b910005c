"""Compile TorchRL's extension from the sources in its wheel, for the torch that is installed beside it.

Runs in TorchRL's environment, and needs a C++ compiler. The wheel's own extension is replaced: it can be imported with
the version of torch that it was compiled against, and with no other.
"""

import importlib.util
import tempfile
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension


def compile_extension(folder: Path) -> None:
    """Compile `csrc` in the folder of the package, with the optimization of TorchRL's own build."""
    sources = sorted(str(path) for path in (folder / "csrc").glob("*.cpp"))
    with tempfile.TemporaryDirectory() as scratch:
        setup(
            name="torchrl_extension",
            ext_modules=[CppExtension("torchrl._torchrl", sources, extra_compile_args=["-O3"])],
            cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
            script_args=["build_ext", "--build-lib", str(folder.parent), "--build-temp", scratch],
        )


if __name__ == "__main__":
    package = importlib.util.find_spec("torchrl")
    assert package is not None
    assert package.origin is not None
    compile_extension(Path(package.origin).parent)
