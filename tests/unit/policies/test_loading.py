from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from polyarm.contracts import EpisodeKey
from polyarm.errors import MissingExtra, PolicyError, UnknownName
from polyarm.policies import (
    ExpertPolicy,
    FunctionPolicy,
    RandomPolicy,
    ReplayPolicy,
    TorchPolicy,
    ZeroPolicy,
    expand_policies,
    load_policy,
)
from polyarm.testing.policies import check_policy

BOX = spaces.Box(-1, 1, (2,))

SOURCE = """
    import numpy as np

    class Still:
        def __init__(self, *details):
            self.details = details
        def begin(self, episodes):
            pass
        def act(self, batch):
            return np.zeros((len(batch), 2), np.float32)

    class Sized(Still):
        def __init__(self, action_space, *, chunk=7):
            super().__init__(action_space, chunk)

    class Actor:
        def act(self, batch):
            return None

    class Family:
        class Member(Still):
            pass

    still = Still("ready")
    number = 3

    def make():
        return Still("made")

    def make_with_space(action_space):
        return Still(action_space)

    def make_with_all(action_space, chunk, speed=1.0):
        return Still(action_space, chunk, speed)

    def restore(path, action_space):
        return Still(path, action_space)

    def act_on_batch(batch):
        return batch.obs["state"][:, :2]

    def act_on_anything(things):
        return things.obs["state"][:, :2]

    def act_on_obs(obs, scale=1.0):
        return obs["state"][:, :2] * scale

    def make_nothing():
        return None

    def make_maker():
        return make

    def make_function():
        return act_on_batch
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current directory, with a module of policies in it."""
    (tmp_path / "mypolicies.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("mypolic")]:
        del sys.modules[name]


def load(name, **options):
    return load_policy(name, BOX, **options)


def test_built_in_policies_have_names():
    assert type(load("random")) is RandomPolicy
    assert type(load("zero")) is ZeroPolicy
    assert type(load("expert")) is ExpertPolicy
    for name in ("random", "zero"):
        assert load(name, chunk=3).fingerprint["chunk"] == 3
        check_policy(load(name, chunk=3), BOX)


def test_the_expert_takes_a_chunk_only_if_one_is_asked_for():
    assert load("expert").expert_steps == ExpertPolicy().expert_steps
    assert load("expert", chunk=4).expert_steps == 4


def test_a_replay_is_named_by_its_path(tmp_path):
    arrays = {"suite": "toy", "task": "count", "index": 3, "actions": np.zeros((4, 2))}
    np.savez(tmp_path / "a.npz", **arrays)
    policy = load(f"replay:{tmp_path}", chunk=2)
    assert type(policy) is ReplayPolicy
    assert policy.episodes == [EpisodeKey("toy", "count", 3)]
    assert policy.fingerprint["chunk"] == 2


@pytest.mark.parametrize(
    ("name", "closest"),
    [("randm", "random"), ("Zero", "zero"), ("experts", "expert"), ("replay:", "replay:<path>")],
)
def test_an_unknown_name_is_an_error_with_the_closest(name, closest):
    with pytest.raises(UnknownName, match=f"unknown policy '{name}'; did you mean '{closest}'"):
        load(name)


@pytest.mark.parametrize("name", ["", ":", "module:", ":load", "@path", "runs/model"])
def test_a_name_that_is_no_name_is_an_error(name):
    with pytest.raises(UnknownName, match=r"Valid: .*<module>:<name>"):
        load(name)


@pytest.mark.parametrize(
    ("name", "details"),
    [
        ("still", ("ready",)),
        ("Still", ()),
        ("Family.Member", ()),
        ("Sized", (BOX, 5)),
        ("make", ("made",)),
        ("make_with_space", (BOX,)),
        ("make_with_all", (BOX, 5, 1.0)),
        ("restore@ckpts/a:b@c.pt", ("ckpts/a:b@c.pt", BOX)),
        ("Still@ckpts/last", ("ckpts/last",)),
    ],
)
def test_objects_classes_and_factories_become_policies(project, name, details):
    policy = load(f"mypolicies:{name}", chunk=5)
    assert policy.details == details
    check_policy(policy, BOX)


@pytest.mark.parametrize("name", ["act_on_batch", "act_on_anything", "act_on_obs", "make_function"])
def test_a_function_of_a_batch_becomes_a_policy(project, name):
    policy = load(f"mypolicies:{name}")
    assert type(policy) is FunctionPolicy
    assert policy.fingerprint["name"] == f"mypolicies:{name}"
    check_policy(policy, BOX)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "found 3 "),
        ("number@path", "cannot be called"),
        ("make_nothing", "found None"),
        ("make_maker", "is no policy"),
        ("Actor", "Actor has act.*begin"),
    ],
)
def test_what_is_no_policy_is_an_error_that_says_what_was_found(project, name, message):
    with pytest.raises(PolicyError, match=message):
        load(f"mypolicies:{name}")


def test_a_module_that_does_not_exist_is_an_error_with_the_closest(project):
    with pytest.raises(UnknownName, match="'mypolicy'; did you mean 'mypolicies'") as caught:
        load("mypolicy:make")
    assert str(project) in str(caught.value)
    with pytest.raises(UnknownName, match=r"'no\.such\.place'"):
        load("no.such.place:make")


def test_a_name_that_does_not_exist_in_a_module_is_an_error_with_the_closest(project):
    with pytest.raises(UnknownName, match="in mypolicies 'maek'; did you mean 'make'"):
        load("mypolicies:maek")


def test_what_a_module_lacks_is_named(project):
    (project / "mypolicies_of_others.py").write_text("import no_such_library\n")
    with pytest.raises(MissingExtra, match="needs 'no_such_library'"):
        load("mypolicies_of_others:make")


def test_an_error_inside_a_module_is_told_with_its_cause(project):
    (project / "mypolicies_that_fail.py").write_text("1 / 0\n")
    where = r"ZeroDivisionError: .* \(mypolicies_that_fail.py, line 1;"
    with pytest.raises(PolicyError, match=where) as caught:
        load("mypolicies_that_fail:make")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_a_factory_is_told_with_its_place_and_what_it_may_lack(project):
    (project / "mypolicies_made.py").write_text(
        "import json\n"
        "class Net:\n"
        "    def __init__(self, path):\n"
        "        self.weights = open(path)\n"
        "def parse(path):\n"
        "    return json.loads('no json')\n"
    )
    with pytest.raises(PolicyError, match=r"made: FileNotFoundError: .*made.py, line 4;") as caught:
        load("mypolicies_made:Net@missing.pt")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(PolicyError, match=r"made: TypeError: .*behind an @: mypolicies_made:Net@P"):
        load("mypolicies_made:Net")
    with pytest.raises(PolicyError, match=r"made: JSONDecodeError: .*made.py, line 6;"):
        load("mypolicies_made:parse@x")  # raised in json, which was called there


def test_modules_of_torch_become_policies(project):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    (project / "mypolicies_torch.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(4, 2)\n"
        "def build(): return net\n"
        "def restore(path):\n"
        "    made = torch.nn.Linear(4, 2)\n"
        "    made.load_state_dict(torch.load(path))\n"
        "    return made\n"
    )
    torch.save(torch.nn.Linear(4, 2).state_dict(), project / "weights.pt")
    names = ("net", "build", "restore@weights.pt")
    policies = [load(f"mypolicies_torch:{name}") for name in names]
    assert {type(policy) for policy in policies} == {TorchPolicy}
    net, built, restored = (policy.fingerprint["weights"] for policy in policies)
    assert net == built != restored
    check_policy(policies[2], BOX)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_file_becomes_a_policy(project, make_batch):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    module = torch.nn.Linear(4, 2)
    torch.jit.script(module).save(str(project / "model.pt"))
    policy = load("model.pt")
    obs = {"state": np.ones((3, 4), np.float32)}
    expected = TorchPolicy(module).act(make_batch(range(3), obs))
    np.testing.assert_allclose(policy.act(make_batch(range(3), obs)), expected, rtol=1e-5)
    assert policy.fingerprint["module"] == "Linear"
    assert policy.fingerprint["weights"] == TorchPolicy(module).fingerprint["weights"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_file_that_is_not_torchscript_is_an_error_that_says_what_to_do(project):
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'polyarm[torch]'")
    torch.save(torch.nn.Linear(4, 2).state_dict(), project / "weights.pt")
    with pytest.raises(PolicyError, match=r"<module>:<function>@weights\.pt"):
        load("weights.pt")
    with pytest.raises(PolicyError, match=r"no file nowhere\.pt"):
        load("nowhere.pt")


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def test_a_glob_becomes_all_its_matches_in_natural_order(project):
    touch("ckpts/step_10.pt", "ckpts/step_9.pt", "ckpts/step_100.pt", "ckpts/notes.txt")
    assert expand_policies("mod:load@ckpts/step_*.pt") == [
        ("step_9", "mod:load@ckpts/step_9.pt"),
        ("step_10", "mod:load@ckpts/step_10.pt"),
        ("step_100", "mod:load@ckpts/step_100.pt"),
    ]
    assert expand_policies("ckpts/*_1?.pt") == [("step_10", "ckpts/step_10.pt")]
    assert [label for label, _ in expand_policies("replay:ckpts/*")] == [
        "notes",
        "step_9",
        "step_10",
        "step_100",
    ]


def test_labels_are_the_parts_that_differ(project):
    touch("runs/a/1/model.pt", "runs/b/1/model.pt", "runs/b/2/model.pt")
    labels = [label for label, _ in expand_policies("mod:load@runs/*/*/model.pt")]
    assert labels == ["a/1", "b/1", "b/2"]
    labels = [label for label, _ in expand_policies("mod:load@runs/*/1/model.pt")]
    assert labels == ["a", "b"]


@pytest.mark.parametrize(
    "files",
    [
        ("x/a.pt", "x/a.pth"),
        ("x/a.pt", "x/y/a.pt"),
        ("x/1.0.pt", "x/1.1.pt", "x/1.pt"),
        ("x/a/a.pt", "x/a.pt"),
        ("x/07.pt", "x/7.pt"),
    ],
)
def test_labels_are_unique(project, files):
    touch(*files)
    expanded = expand_policies("mod:load@x/**/*.pt*")
    assert sorted(name for _, name in expanded) == sorted(f"mod:load@{file}" for file in files)
    assert len({label for label, _ in expanded}) == len(files)
    assert all(label for label, _ in expanded)


def test_a_name_without_a_glob_stands_for_itself(project):
    touch("ckpts/step[1].pt")
    assert expand_policies("random") == [("random", "random")]
    assert expand_policies("mod:load") == [("mod:load", "mod:load")]
    assert expand_policies("mod:load@a/b.pt") == [("b", "mod:load@a/b.pt")]
    assert expand_policies("a/b.pt") == [("b", "a/b.pt")]
    assert expand_policies("replay:runs/today/") == [("today", "replay:runs/today/")]
    assert expand_policies("ckpts/step[1].pt") == [("step[1]", "ckpts/step[1].pt")]


def test_a_glob_without_a_match_is_an_error_that_names_it(project):
    with pytest.raises(PolicyError, match=r"no file matches 'ckpts/step_\*\.pt'"):
        expand_policies("mod:load@ckpts/step_*.pt")
