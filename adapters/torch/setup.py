# SPDX-License-Identifier: Apache-2.0
"""Wheels that carry libflexcast.so are for one platform, and for every Python 3."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class CarriesLibrary(Distribution):
    """A distribution with a shared library, if it was put beside the package."""

    def has_ext_modules(self) -> bool:
        return (Path(__file__).parent / "flexcast/libflexcast.so").exists()


class Wheel(bdist_wheel):
    """No extension module: any Python will do."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=CarriesLibrary, cmdclass={"bdist_wheel": Wheel})
