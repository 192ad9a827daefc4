"""Promises of the repository's frame that no other tool checks."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PACKAGES = ("trainer", "sync", "checkpoint", "services")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def _sources() -> Iterator[Path]:
    for folder in (*PACKAGES, "benchmarks", "tests"):
        yield from (ROOT / folder).rglob("*.py")


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def test_proto_is_no_python_package() -> None:
    """proto-plus, which Ray brings, owns the module name ``proto``."""
    assert not list((ROOT / "proto").rglob("*.py"))


def test_files_stay_small() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _sources()}
    assert len(sizes) > 20
    assert {str(path): lines for path, lines in sizes.items() if lines > 500} == {}


def test_every_package_folder_can_be_imported_by_name() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_make_lint_runs_every_check() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert tool in recipe.group(1)


def test_ci_runs_what_a_person_types() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert re.findall(r"^make (\S+)", script.read_text(encoding="utf-8"), re.MULTILINE) == ["lint", "test"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert {"run": ".ci/run"} in workflow["jobs"]["checks"]["steps"]


def test_commands_of_the_documentation_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"(?:^|`|&& |^.*\n)make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test", "lint", "setup"} <= named
    assert named <= TARGETS
    for path in re.findall(r"\bconfigs/[a-z_]+\.yaml", text):
        assert (ROOT / path).is_file(), path
    for path in re.findall(r"\]\(([a-z][\w/.-]*)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


def test_every_target_sets_up_what_it_needs() -> None:
    for target in ("demo", "test", "test-all", "lint", "bench"):
        assert re.search(rf"^{target}: setup\b", MAKEFILE, re.MULTILINE), target


def test_constraints_pin_every_requirement_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pins = _pins()
    for requirement in map(Requirement, lines):
        pin = pins[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(pin), f"{requirement} is pinned to {pin}"


@pytest.mark.parametrize("name", ["torch", "torchrec", "fbgemm-gpu-cpu", "ray", "pydantic", "numpy", "pyarrow"])
def test_the_environment_is_the_pinned_one(name: str) -> None:
    try:
        installed = Version(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        assert name == "fbgemm-gpu-cpu"  # a GPU machine has fbgemm-gpu in its place
        installed = Version(importlib.metadata.version("fbgemm-gpu"))
    assert installed.public == _pins()[name]


def test_make_without_a_target_lists_the_targets() -> None:
    listed = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for target in ("setup", "demo", "test", "test-all", "lint", "bench", "clean"):
        assert re.search(rf"make {target}\b", listed), target


def test_make_names_what_is_wrong_with_the_accelerator(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    made = subprocess.run(["make", "setup", "ACCELERATOR=tpu"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode != 0
    assert "ACCELERATOR must be cpu or gpu, got 'tpu'" in made.stderr
    assert not (tmp_path / ".venv").exists()
