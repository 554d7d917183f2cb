"""Words of Hydra and OmegaConf, read from their files."""

from autotune.inspection.script import script_facts
from autotune.knobs.batch.batch_size import BATCH_OPTIONS, given_batch_size

MAIN = '@hydra.main(version_base=None, config_path="conf", config_name="config")\ndef main(cfg):\n    pass\n'


def facts(folder, source, files, args=()):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
    (folder / "train.py").write_text(source, encoding="utf-8")
    return script_facts(str(folder / "train.py"), args)


def test_every_value_of_the_composed_configuration_is_an_option(tmp_path):
    files = {
        "conf/config.yaml": "defaults:\n  - data: small\n  - _self_\nseed: 3\nout: ${hydra:run.dir}\n",
        "conf/data/small.yaml": "batch_size: 32\npath: data\n",
    }
    found = facts(tmp_path, MAIN, files, ["data.batch_size=16"])
    assert {flag.names[0]: flag.default for flag in found.flags} == {
        "data.batch_size": 32,
        "data.path": "data",
        "seed": 3,
    }
    option = found.flag(*BATCH_OPTIONS.names)
    assert option is not None
    assert option.names == ("data.batch_size",)
    assert given_batch_size(found, ["data.batch_size=16"]) == 16


def test_of_two_batches_that_of_the_evaluation_is_left_aside(tmp_path):
    files = {"conf/config.yaml": "train: {batch_size: 32}\nval: {batch_size: 256}\n"}
    option = facts(tmp_path, MAIN, files).flag(*BATCH_OPTIONS.names)
    assert option is not None
    assert option.default == 32
    files = {"conf/config.yaml": "a: {batch_size: 32}\nb: {batch_size: 256}\n"}
    assert facts(tmp_path, MAIN, files).flag(*BATCH_OPTIONS.names) is None


def test_omegaconf_takes_words_where_the_script_reads_them(tmp_path):
    files = {"base.yaml": "train:\n  batch_size: 8\n"}
    read = 'cfg = OmegaConf.load("base.yaml")\n'
    both = f"{read}cfg = OmegaConf.merge(cfg, OmegaConf.from_cli())\n"
    assert not facts(tmp_path, read, files).flags
    assert [flag.names for flag in facts(tmp_path, both, files).flags] == [("train.batch_size",)]


def test_files_that_are_missing_or_no_yaml_say_nothing(tmp_path):
    assert not facts(tmp_path, MAIN, {}).flags
    assert not facts(tmp_path, MAIN, {"conf/config.yaml": "a: [\n"}).flags
