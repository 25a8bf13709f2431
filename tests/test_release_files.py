"""The files that a release and public CI read hold together with pyproject.toml."""

import tomllib

import pytest
import yaml

from tools.units import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert set(citation["license"]) == set(PROJECT["license"].split(" AND ")) == {"MIT", "CC-BY-4.0"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_forms_and_workflows_are_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_public_ci_calls_the_same_proof_on_every_python_that_is_promised():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    proof = workflow["jobs"]["proof"]
    assert {step.get("run") for step in proof["steps"]} >= {"bash .ci/run"}
    pythons = {row["python"] for row in proof["strategy"]["matrix"]["include"]}
    low, high = (tuple(map(int, v.strip("><=").split("."))) for v in PROJECT["requires-python"].split(","))
    assert pythons == {f"3.{minor}" for minor in range(low[1], high[1])}
