"""The configuration: every field is read, bad values are refused, nothing is run as code."""

import dataclasses
from pathlib import Path

import pytest

from parallel_agents.core.config import (
    MAX_CONFIG_BYTES,
    Config,
    Experiment,
    Parallel,
    build_section,
    merge,
    parse_setting,
    read_toml,
)
from parallel_agents.core.errors import ConfigError

OTHER = {
    "experiment": {
        "epochs": 2, "total_timesteps": 72, "max_turns": 9, "autoreset": True, "seed": 3, "seeds": 2, "worlds": 4, "record_period": 0,
        "checkpoint_every": 5, "keep_last": 1, "eval_every": 2, "eval_episodes": 6, "sweep": {"model.lr": (0.1, 0.2)},
    },
    "parallel": {
        "enabled": False, "parallel_actions": False, "parallel_training": False, "async_learning": False,
        "train_interval": 2, "num_workers": 3, "use_threads": True, "backend": "ray", "buffer_sync": "lock",
        "turn_order": "sequential", "policy_lag": 2, "publish": "asap", "device": "auto", "round_deadline": 1.5,
        "world_deadline": 2.5, "max_failures": 0, "address": "auto", "resources_per_worker": {"CPU": 0.5},
        "world_shards": 2,
    },
}  # fmt: skip
"""A value for every key that differs from its default."""


@pytest.mark.parametrize(("section", "cls"), [("experiment", Experiment), ("parallel", Parallel)])
def test_every_field_is_read(section, cls):
    assert set(OTHER[section]) == {field.name for field in dataclasses.fields(cls)}
    built = getattr(Config.build(OTHER), section)
    for name, value in OTHER[section].items():
        assert getattr(built, name) == value != getattr(cls(), name), name


def test_a_configuration_equals_itself_after_as_dict_and_build():
    config = Config.build({**OTHER, "world": {"size": 5}, "model": {"lr": 0.1}})
    assert Config.build(config.as_dict()) == config
    assert Config.build(config) is config
    assert Config.build(None) == Config.build({}) == Config()


def test_configurations_are_frozen():
    config = Config.build({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.experiment.epochs = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.parallel = Parallel()


def test_without_a_parallel_section_a_run_is_sequential_with_lag_0():
    assert Config.build({"experiment": {"epochs": 2}}).parallel == Parallel(enabled=False, policy_lag=0)
    assert Config.build({"parallel": {}}).parallel == Parallel(enabled=True, policy_lag=1)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            {"paralel": {}},
            r"unknown section paralel; did you mean parallel\? Allowed: experiment, world, model, parallel",
        ),
        ({"zzz": {}}, r"unknown section zzz\. Allowed: experiment"),
        ({"parallel": {"num_worker": 1}}, r"unknown key parallel\.num_worker; did you mean parallel\.num_workers\?"),
        ({"experiment": {"qqq": 1}}, r"unknown key experiment\.qqq\. Allowed: epochs, total_timesteps, max_turns"),
        ({"experiment": {3: 1}}, r"unknown key experiment\.3"),
        ({"experiment": 5}, r"experiment is 5: a section holds keys and values"),
        ({"world": [1]}, r"world is \[1\]: a section holds keys and values"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(raw, text):
    with pytest.raises(ConfigError, match=text):
        Config.build(raw)


@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        ("experiment", "epochs", "5", r"experiment\.epochs is '5' \(str\): allowed is int"),
        ("experiment", "epochs", 5.0, r"experiment\.epochs is 5\.0 \(float\): allowed is int"),
        ("experiment", "epochs", True, r"experiment\.epochs is True \(bool\): allowed is int"),
        ("experiment", "epochs", None, r"experiment\.epochs is None \(NoneType\)"),
        ("experiment", "autoreset", 1, r"experiment\.autoreset is 1 \(int\): allowed is bool"),
        ("parallel", "num_workers", 1.5, r"parallel\.num_workers is 1\.5 \(float\): allowed is int, None"),
        ("parallel", "use_threads", "yes", r"parallel\.use_threads is 'yes' \(str\): allowed is bool, None"),
        (
            "parallel",
            "backend",
            "threads",
            r"parallel\.backend is 'threads' .* allowed is 'inline', 'thread', 'process', 'ray', None",
        ),
        ("parallel", "backend", ["ray"], r"parallel\.backend is \['ray'\] \(list\)"),
        ("parallel", "turn_order", True, r"parallel\.turn_order is True"),
        ("parallel", "round_deadline", "60", r"parallel\.round_deadline is '60' \(str\): allowed is float"),
        ("parallel", "round_deadline", False, r"parallel\.round_deadline is False"),
        ("parallel", "round_deadline", 10**400, r"parallel\.round_deadline is 1000"),
        (
            "parallel",
            "resources_per_worker",
            {"CPU": "x"},
            r"parallel\.resources_per_worker\.CPU is 'x' \(str\): allowed is float",
        ),
        ("parallel", "resources_per_worker", [1], r"parallel\.resources_per_worker is \[1\] \(list\)"),
    ],
)
def test_wrong_types_are_refused(section, key, value, text):
    with pytest.raises(ConfigError, match=text):
        Config.build({section: {key: value}})


@pytest.mark.parametrize(
    ("section", "key", "least"),
    [
        *(("experiment", key, 1) for key in ("epochs", "max_turns", "seeds", "worlds", "keep_last", "eval_episodes")),
        *(("experiment", key, 0) for key in ("seed", "record_period", "checkpoint_every", "eval_every")),
        *(("parallel", key, 1) for key in ("train_interval", "num_workers")),
        *(("parallel", key, 0) for key in ("policy_lag", "max_failures")),
    ],
)
def test_values_out_of_range_are_refused(section, key, least):
    assert getattr(getattr(Config.build({section: {key: least}}), section), key) == least
    with pytest.raises(ConfigError, match=rf"{section}\.{key} is {least - 1}: give a whole number of at least {least}"):
        Config.build({section: {key: least - 1}})


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
@pytest.mark.parametrize("key", ["round_deadline", "world_deadline"])
def test_deadlines_are_above_0(key, seconds):
    with pytest.raises(ConfigError, match=rf"parallel\.{key} is .*: give a number of seconds above 0"):
        Config.build({"parallel": {key: seconds}})


def test_whole_numbers_are_accepted_for_floats():
    deadline = Config.build({"parallel": {"round_deadline": 3}}).parallel.round_deadline
    assert deadline == 3.0
    assert isinstance(deadline, float)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"publish": "asap", "policy_lag": 0}, r"'asap' with parallel\.policy_lag 0"),
        ({"address": "auto"}, r"are for backend 'ray', but backend is None"),
        (
            {"address": "ray://head:10001", "backend": "ray"},
            r"parallel\.address is 'ray://head:10001': write host:port",
        ),
        ({"address": "head", "backend": "ray"}, r"parallel\.address is 'head': write host:port"),
        ({"resources_per_worker": {"GPU": -1}, "backend": "ray"}, r"resources_per_worker has {'GPU': -1\.0}"),
        ({"resources_per_worker": {"CPU": 1}, "backend": "thread"}, r"are for backend 'ray', but backend is 'thread'"),
    ],
)
def test_contradictory_flags_are_refused(flags, text):
    with pytest.raises(ConfigError, match=text):
        Config.build({"parallel": flags})


@pytest.mark.parametrize("source", [5, ["a"], object()])
def test_other_objects_than_configurations_are_refused(source):
    with pytest.raises(ConfigError, match="a configuration is a dict or the path of a TOML file, not a"):
        Config.build(source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    widths: tuple[int, ...] = (1,)


def test_elements_of_tuples_are_checked():
    assert build_section(Sizes, {"widths": [2, 3]}, "s") == Sizes(widths=(2, 3))
    with pytest.raises(ConfigError, match=r"s\.widths\[1\] is 'x' \(str\): allowed is int"):
        build_section(Sizes, {"widths": [2, "x"]}, "s")
    with pytest.raises(ConfigError, match=r"s\.widths is 3 \(int\)"):
        build_section(Sizes, {"widths": 3}, "s")


# -- TOML -----------------------------------------------------------------------------------------------------


def write(folder, text):
    path = folder / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_toml_is_read(tmp_path):
    path = write(tmp_path, "[experiment]\nepochs = 4\n[parallel]\nnum_workers = 2\n[model]\nhidden = [8, 8]\n")
    config = Config.build(path)
    assert (config.experiment.epochs, config.parallel.num_workers, config.model) == (4, 2, {"hidden": [8, 8]})
    assert Config.build(str(path)) == config


@pytest.mark.parametrize(
    "text",
    ["[experiment\n", "epochs = \n", b"\xff\xfe\x00", "a = " + "[" * 5000, "a = " + "9" * 5000],
    ids=["open bracket", "no value", "not utf-8", "deep", "long number"],
)
def test_malformed_toml_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"config\.toml is not valid TOML"):
        read_toml(write(tmp_path, text))


def test_huge_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    path = write(tmp_path, "# " + "x" * MAX_CONFIG_BYTES)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("the file was read"))
    with pytest.raises(ConfigError, match=r"is larger than 1,000,000 bytes"):
        read_toml(path)


def test_absent_files_and_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml: No such file"):
        Config.build(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        Config.build(tmp_path)


# -- section.key=value ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s.k=2", 2),
        ("s.k=2.5", 2.5),
        (" s.k = true ", True),
        ("s.k=False", False),
        ("s.k=None", None),
        ("s.k=null", None),
        ("s.k=[1, 2]", [1, 2]),
        ('s.k={"a": 1}', {"a": 1}),
        ("s.k=thread", "thread"),
        ("s.k='thread'", "'thread'"),
        ("s.k=a=b", "a=b"),
        ("s.k=", ""),
        ("s.k=" + "[" * 100_000, "[" * 100_000),
        ("s.k=" + "9" * 5000, "9" * 5000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_settings_are_parsed(text, value):
    parsed = parse_setting(text)
    assert parsed == {"s": {"k": value}}
    assert type(parsed["s"]["k"]) is type(value)


@pytest.mark.parametrize("text", ["", "epochs=3", "experiment.epochs", "experiment.=3", "=", "experiment"])
def test_settings_without_section_key_or_value_are_refused(text):
    with pytest.raises(ConfigError, match=r"write section\.key=value"):
        parse_setting(text)


def test_settings_override_a_configuration():
    layers = [
        {"experiment": {"epochs": 5, "seed": 1}},
        parse_setting("experiment.epochs=7"),
        parse_setting("model.lr=0.5"),
    ]
    merged = merge(*layers)
    assert merged == {"experiment": {"epochs": 7, "seed": 1}, "model": {"lr": 0.5}}
    assert layers[0] == {"experiment": {"epochs": 5, "seed": 1}}


def test_a_section_replaces_a_value_and_a_value_a_section():
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    assert merge({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


HOSTILE = "__import__('os').environ.__setitem__('PWNED', '1')"


def test_code_in_text_is_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv("PWNED", raising=False)
    assert parse_setting(f"model.algorithm={HOSTILE}") == {"model": {"algorithm": HOSTILE}}
    config = Config.build(write(tmp_path, f'[world]\nname = """{HOSTILE}"""\n'))
    assert config.world == {"name": HOSTILE}
    with pytest.raises(ConfigError, match="__import__"):
        Config.build({"parallel": {"backend": HOSTILE}})
    with pytest.raises(ConfigError, match=r"unknown key parallel\.__class__"):
        Config.build(parse_setting("parallel.__class__=x"))
    import os

    assert "PWNED" not in os.environ
