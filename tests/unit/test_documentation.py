"""The examples that the documents show are run as they stand there."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{each.name}" for each in ROOT.glob("docs/*.md")),
]


def code_blocks(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_suite_shown_in_contributing_passes_its_own_test(tmp_path, monkeypatch):
    suite, test = code_blocks("CONTRIBUTING.md")
    (tmp_path / "pendulums.py").write_text(suite)
    (tmp_path / "test_pendulums.py").write_text(test)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("test_pendulums").test_pendulums_keep_the_contract()
    finally:
        for name in ("pendulums", "test_pendulums"):
            monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_example_is_valid_python(document):
    for block in code_blocks(document):
        compile(block, document, "exec")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_to_a_file_leads_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), target


@pytest.mark.parametrize("room", ["vector", "suites", "rollout", "distributed", "training"])
def test_every_file_of_a_large_room_is_on_its_map(room):
    named = set(re.findall(r"`(?:\w+/)?(\w+)`", (ROOT / "docs/architecture.md").read_text()))
    files = {path.stem for path in (ROOT / "src/polyarm" / room).rglob("*.py")} - {"__init__"}
    assert not files - named
