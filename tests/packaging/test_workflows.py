"""The files for GitHub: valid by their schemas, and what they run exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rearview import __version__
from tests.docs.markdown import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
# Each file and the schema that it must follow.
SCHEMAS = {
    **{f".github/workflows/{path.name}": "github-workflows" for path in WORKFLOWS},
    ".github/dependabot.yml": "dependabot",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/question.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
}

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def commands_of(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def unknown_targets(command: str) -> set[str]:
    words = re.findall(r"^make\s+(.*)$", command, flags=re.MULTILINE)
    return {word for line in words for word in line.split() if re.fullmatch(r"[a-z-]+", word)} - TARGETS


def test_every_file_has_a_schema():
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")}
    assert found == {name for name in SCHEMAS if name.startswith(".github/")}
    assert {path.stem for path in WORKFLOWS} == {"ci", "docs", "wheels"}


@pytest.mark.parametrize("schema", sorted(set(SCHEMAS.values())))
def test_files_follow_their_schemas(schema: str):
    files = [name for name, its in SCHEMAS.items() if its == schema]
    call = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@each_workflow
def test_workflows_run_what_exists(path: Path):
    commands = commands_of(path)
    assert commands
    for command in commands:
        assert unknown_targets(command) == set(), command
        for script in re.findall(r"(?:^|\s)(\.?\w[\w.]*/[\w./]+)(?=\s|$)", command):
            assert (ROOT / script).exists() or script.startswith(("sdist/", "dist/")), command


def test_a_target_that_does_not_exist_is_found():
    assert unknown_targets("make setup-newest TORCH=2.11\nmake tests") == {"tests"}


@each_workflow
def test_workflows_may_only_read_unless_they_publish(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert name == "publish" or "permissions" not in job
        assert job["timeout-minutes"] <= 60


def test_only_a_tag_publishes_to_the_index():
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    users = {name for name, job in jobs.items() if any("pypi-publish" in step.get("uses", "") for step in job["steps"])}
    assert users == {"publish"}
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(jobs["publish"]["needs"]) == {"sdist", "wheels"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}


def test_the_matrix_has_the_versions_that_the_package_names():
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["matrix"]["strategy"]["matrix"]
    project = (ROOT / "pyproject.toml").read_text()
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", project)
    assert f'requires-python = ">={matrix["python"][0]}"' in project
    assert f'dependencies = ["torch>={matrix["torch"][0]}"]' in project
    assert f"torch=={matrix['torch'][-1]}." in (ROOT / "constraints.txt").read_text()


def test_the_hooks_use_the_pinned_ruff():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (ruff,) = (repo for repo in hooks["repos"] if repo["repo"].endswith("ruff-pre-commit"))
    assert f"ruff=={ruff['rev'].removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()


def test_a_citation_names_the_newest_release():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## \[([\d.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert (cited["version"], str(cited["date-released"])) == newest.groups()
    assert cited["version"] == __version__
