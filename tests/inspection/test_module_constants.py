"""Which constants of a script a knob may replace."""

import pytest

from autotune.inspection.module_constants import named_by_user, script_constants


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(
        "import config\nfrom pkg import data\nlr = 1e-3\nBATCH_SIZE = 32\nhidden = 64\n", encoding="utf-8"
    )
    (tmp_path / "config.py").write_text("NUM_WORKERS = 4\nbatch_size = 'auto'\n", encoding="utf-8")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "data.py").write_text("def batches(x, batch_size=16):\n    pass\n", encoding="utf-8")
    return str(tmp_path / "train.py")


def test_they_are_whole_numbers_under_names_that_knobs_know_with_file_and_line(script):
    found = {(c.name, c.file, c.line, c.value) for c in script_constants(script)}
    assert found == {
        ("BATCH_SIZE", "train.py", 4, 32),
        ("NUM_WORKERS", "config.py", 1, 4),
        ("batches(batch_size)", "pkg/data.py", 1, 16),
    }


def test_words_and_switches_are_those_of_knobs_that_take_them(tmp_path):
    source = "PRECISION = 'fp32'\nCOMPILE = False\nBATCH_SIZE = True\ncfg = dict(use_amp=False, dtype=3)\n"
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    found = {c.name: c.value for c in script_constants(str(tmp_path / "train.py"))}
    assert found == {"PRECISION": "fp32", "COMPILE": False, "cfg.use_amp": False}
    sets, _ = named_by_user(["PRECISION=fp32,bf16", "COMPILE=False,True"], str(tmp_path / "train.py"))
    assert sets == ("precision=fp32,bf16", "compile_mode=False,True")


def test_a_constant_given_by_the_user_is_the_one_that_is_meant(script):
    sets, chosen = named_by_user(["batches(batch_size)=8,16", "precision=bf16"], script)
    assert sets == ("batch_size=8,16", "precision=bf16")
    assert chosen == ("batches(batch_size)",)
    marked = [c.name for c in script_constants(script, chosen) if c.is_chosen]
    assert marked == ["batches(batch_size)"]


def test_a_knob_keeps_its_name_where_a_constant_is_called_like_it(tmp_path):
    (tmp_path / "train.py").write_text("batch_size = 8\n", encoding="utf-8")
    assert named_by_user(["batch_size=8,16"], str(tmp_path / "train.py")) == (("batch_size=8,16",), ())
