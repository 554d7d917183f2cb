"""Variables that hold several settings."""

import pytest

from autotune.model.environment_variables import contains_setting, with_setting

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
ROUNDED = "roundup_power2_divisions:[256:1,512:2,>:8]"
EXPANDABLE = "expandable_segments:True"


@pytest.mark.parametrize(
    ("env", "name", "text", "changed"),
    [
        ({}, "OMP_NUM_THREADS", "2", {"OMP_NUM_THREADS": "2"}),
        ({"OMP_NUM_THREADS": "8"}, "OMP_NUM_THREADS", "2", {"OMP_NUM_THREADS": "2"}),
        ({}, "LD_PRELOAD", "/j.so", {"LD_PRELOAD": "/j.so"}),
        ({"LD_PRELOAD": "/a.so /b.so:"}, "LD_PRELOAD", "/j.so", {"LD_PRELOAD": "/j.so:/a.so:/b.so"}),
        ({"LD_PRELOAD": "/a.so:/j.so"}, "LD_PRELOAD", "/j.so", {"LD_PRELOAD": "/j.so:/a.so"}),
        ({"GLIBC_TUNABLES": "a.b=1:c.d=2"}, "GLIBC_TUNABLES", "c.d=3", {"GLIBC_TUNABLES": "a.b=1:c.d=3"}),
        ({}, NEW, EXPANDABLE, {NEW: EXPANDABLE}),
        (
            {NEW: f"max_split_size_mb:128, {ROUNDED}"},
            NEW,
            EXPANDABLE,
            {NEW: f"max_split_size_mb:128,{ROUNDED},{EXPANDABLE}"},
        ),
        ({NEW: "expandable_segments:False"}, NEW, EXPANDABLE, {NEW: EXPANDABLE}),
        (
            {OLD: "max_split_size_mb:128"},
            NEW,
            EXPANDABLE,
            {NEW: f"max_split_size_mb:128,{EXPANDABLE}", OLD: f"max_split_size_mb:128,{EXPANDABLE}"},
        ),
    ],
)
def test_ours_joins_what_is_there(env, name, text, changed) -> None:
    assert with_setting(env, name, text) == changed
    assert contains_setting({**env, **changed}, name, text)
    assert with_setting({**env, **changed}, name, text) == changed


def test_a_variable_says_only_what_it_holds() -> None:
    assert not contains_setting({}, "LD_PRELOAD", "/j.so")
    assert not contains_setting({"LD_PRELOAD": "/my/j.so"}, "LD_PRELOAD", "/j.so")
    assert not contains_setting({"OMP_NUM_THREADS": "12"}, "OMP_NUM_THREADS", "1")
    assert not contains_setting({NEW: "expandable_segments:False"}, NEW, EXPANDABLE)
