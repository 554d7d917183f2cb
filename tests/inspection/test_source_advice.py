"""Hints about a script's own code, with the line they are about."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
import study_fakes

from autotune.answer.advice import advice_of, advice_text, weighed
from autotune.answer.bottleneck import Evidence, judge
from autotune.inspection.source_advice import advise
from autotune.model.facts import Advice, DeviceFacts, Facts, HostFacts, RunFacts, ScriptFacts
from autotune.model.study import Study

if TYPE_CHECKING:
    from pathlib import Path

CPU = HostFacts(cpus=2, physical_cores=2, memory_bytes=1)
GPU = HostFacts(
    cpus=2, physical_cores=2, memory_bytes=1,
    devices=(DeviceFacts(name="A100", uuid="GPU-1", memory_bytes=1, capability=(8, 0)),),
)  # fmt: skip
LOOP = """\
import torch
for step, (x, y) in enumerate(loader):
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
"""


def hints(tmp_path: Path, text: str, host: HostFacts = CPU) -> list[Advice]:
    script = tmp_path / "train.py"
    script.write_text(dedent(text))
    return list(advise(str(script), host))


def places(found: list[Advice]) -> list[tuple[str, str]]:
    return [(hint.kind, hint.place) for hint in found]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("    total += loss.item()", "read"),
        ("    history.append(loss.detach().cpu().numpy())", "read"),
        ("    if loss.item() > 10: break", "read"),
        ("    print(step, loss)", "log"),
        ("    writer.add_scalar('loss', loss, step)", "log"),
        ("    bar.set_postfix(loss=loss)", "log"),
        ("    torch.save(model.state_dict(), 'last.pt')", "checkpoint"),
        ("    torch.cuda.empty_cache()", "read"),
    ],
)
def test_what_every_step_does_is_found_with_its_line(tmp_path: Path, line: str, kind: str) -> None:
    found = hints(tmp_path, LOOP + line + "\n", GPU)
    assert (kind, "train.py:6") in places(found)


@pytest.mark.parametrize(
    "line",
    [
        "    if step % 100 == 0: print(step, loss.item())",
        "    if rank == 0 and step % 100 == 0: print(step, loss.item())",
        "    if step == last: torch.save(model, 'm.pt')",
        "    value = torch.log(output)",
        "    print('a step')",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "    def closure(): return loss.item()",
        "    losses.append(loss.detach())",
        "    if step % sample_interval == 0: print(loss.item())",
        "    if i == 0: print(loss.item())",
        "    if not os.path.exists(path): torch.save(model, path)",
        "    shown = loss.item() if step % 10 == 0 else shown",
        "    step % 100 or print(loss)",
        "    if step % 100: continue\n    print(loss.item())",
        "    try: check()\n    except ValueError: print(loss.item())",
        "    for part in parts: print(part.loss)",
    ],
)
def test_what_happens_seldom_or_costs_nothing_is_no_hint(tmp_path: Path, line: str) -> None:
    assert hints(tmp_path, LOOP + line + "\n", GPU) == []


@pytest.mark.parametrize(
    "line",
    [
        "    total += float(loss)",
        "    total += float(loss.detach() / 4)",
        "    out = model(x); history.append(float(out.loss))",
        "    norm = F.mse_loss(x, y); seen += float(norm)",
        "    kept.append(loss.cpu())",
        "    out = model(x); kept.append(out.argmax().cpu())",
    ],
)
def test_a_tensor_that_is_made_a_number_or_copied_to_the_host_is_a_read(tmp_path: Path, line: str) -> None:
    found = hints(tmp_path, LOOP + line + "\n", GPU)
    assert places(found) == [("read", "train.py:6")]


@pytest.mark.parametrize(
    "line", ["kept.append(loss.cpu())", "total += float(loss)", "total += loss.item()", "loss.tolist()"]
)
def test_reading_a_value_waits_for_nothing_where_there_is_no_device(tmp_path: Path, line: str) -> None:
    assert hints(tmp_path, f"{LOOP}    {line}\n", CPU) == []
    assert places(hints(tmp_path, f"{LOOP}    {line}\n", GPU)) == [("read", "train.py:6")]


def test_a_hint_about_reading_is_not_given_for_a_run_that_used_no_device(tmp_path: Path) -> None:
    found = hints(tmp_path, LOOP + "    total += loss.item()\n    print(loss)\n", GPU)
    assert [hint.kind for hint in found] == ["read", "log"]
    script = ScriptFacts(path="/w/train.py")
    for devices, kinds in (((), ["log"]), (GPU.devices, ["read", "log"])):
        facts = Facts(host=GPU, script=script, run=RunFacts(devices=devices), advice=tuple(found))
        study = Study(spec=study_fakes.spec(), facts=facts)
        assert [hint.kind for hint in advice_of(study)] == kinds


def test_a_hint_that_may_buy_hardly_anything_is_left_out(tmp_path: Path) -> None:
    found = hints(tmp_path, LOOP + "    print(loss)\n")
    for host_s, kept in ((0.003, 1), (0.0005, 0)):
        seen = Evidence(step_s=0.1, wait_frac=0.0, phases_s={"forward": 0.09, "host": host_s})
        assert len(weighed(found, judge(seen))) == kept


@pytest.mark.parametrize(
    "body",
    [
        "while other == i: other = random.randint(0, 9)",
        "for _ in range(10):\n            if good(draw()): break",
        "try: return self.kept[i]\n        except KeyError: return cv2.imread(i)",
        "if i in self.kept: return self.kept[i]\n        self.kept[i] = cv2.imread(i)",
        "if self.kept[i] is None: self.kept[i] = cv2.imread(i)",
        "image = self.kept[i] if i in self.kept else cv2.imread(i)",
    ],
)
def test_what_a_data_set_hardly_ever_does_is_no_hint(tmp_path: Path, body: str) -> None:
    text = f"class D:\n    def __getitem__(self, i):\n        {body}\n        return i\n"
    assert hints(tmp_path, text) == []


@pytest.mark.parametrize(
    "line",
    [
        "    rate = float(args.lr)",
        "    size = float(x.shape[0])",
        "    out = model(x); size = float(out.size(0)) + float(out.shape[0])",
        "    value = float(step)",
        "    batch = batch.cpu()",
        "    state = model.cpu()",
        "    if step % 100 == 0: total += float(loss)",
        "    limit = float('inf')",
        "    timing = clock(); seen += float(timing)",
    ],
)
def test_what_is_no_tensor_by_reading_is_no_read(tmp_path: Path, line: str) -> None:
    assert hints(tmp_path, LOOP + line + "\n", GPU) == []


def test_a_name_that_became_a_number_before_is_read_once(tmp_path: Path) -> None:
    lines = "    loss = loss.item()\n    total += float(loss)\n"
    assert places(hints(tmp_path, LOOP + lines, GPU)) == [("read", "train.py:6")]
    chain = "    kept.append(float(loss.detach().cpu()))\n    more.append(loss.detach().cpu().numpy())\n"
    assert places(hints(tmp_path, LOOP + chain, GPU)) == [("read", "train.py:6"), ("read", "train.py:7")]


@pytest.mark.parametrize(
    "backward",
    ["scaler.scale(err).backward()", "(err / 4).backward()", "accelerator.backward(err)", "err.backward()"],
)
def test_what_is_differentiated_is_a_tensor_however_it_was_made(tmp_path: Path, backward: str) -> None:
    text = f"for x in loader:\n    err = step(x)\n    {backward}\n    total += float(err)\n"
    assert places(hints(tmp_path, text, GPU)) == [("read", "train.py:4")]


def test_models_and_losses_are_known_by_what_the_file_does_with_them(tmp_path: Path) -> None:
    text = """\
    gpt = build()
    aim = nn.BCEWithLogitsLoss()
    opt = SGD(gpt.parameters())
    for x in loader:
        logits = gpt(x)
        err = aim(logits, x)
        err.backward()
        a += float(logits.mean())
        extra = aim(logits, x)
        b += float(extra)
    """
    assert places(hints(tmp_path, text, GPU)) == [("read", "train.py:8"), ("read", "train.py:10")]


def test_a_loop_that_does_not_train_is_none_of_ours(tmp_path: Path) -> None:
    assert hints(tmp_path, "for x in loader:\n    print(model(x).loss.item())\n") == []


def test_an_epoch_loop_around_is_not_taken_for_a_step(tmp_path: Path) -> None:
    text = "for epoch in range(3):\n    for x in loader:\n        loss.backward()\n    print(loss.item())\n"
    assert hints(tmp_path, text) == []


def test_a_branch_by_how_the_run_was_set_up_is_a_part_of_every_step(tmp_path: Path) -> None:
    text = LOOP + "    if args.use_amp:\n        scaler.update()\n    else:\n        seen += loss.item()\n"
    assert ("read", "train.py:9") in places(hints(tmp_path, text, GPU))


def test_work_per_sample_in_python_is_found(tmp_path: Path) -> None:
    text = """\
    class Pictures(Dataset):
        def __getitem__(self, i):
            image = Image.open(self.paths[i])
            out = []
            for pixel in image.getdata():
                out.append(pixel / 255)
            return torch.tensor(self.array[i]), torch.tensor([1, 2])
    """
    assert places(hints(tmp_path, text)) == [
        ("preprocess", "train.py:5"),
        ("preprocess", "train.py:3"),
        ("copy", "train.py:7"),
    ]


def test_shapes_are_spoken_of_only_where_tensor_cores_are(tmp_path: Path) -> None:
    text = "head = nn.Linear(768, 50257)\nsmall = nn.Linear(3, 5)\n"
    assert hints(tmp_path, text, CPU) == []
    found = hints(tmp_path, text, GPU)
    assert places(found) == [("shape", "train.py:1")]
    assert "50264" in found[0].text


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        ("VOCAB = 50257\nhead = nn.Linear(768, VOCAB)\n", "VOCAB, 50257,"),
        (
            "class C:\n    vocab: int = 50257\nmade = nn.Embedding(config.vocab, 768)\n",
            "config.vocab, 50257,",
        ),
        ("def make(vocab=50257):\n    return nn.Linear(768, out_features=vocab)\n", "vocab, 50257,"),
        (
            "p.add_argument('-v', '--vocab-size', type=int, default=50257)\nnn.Linear(64, args.vocab_size)\n",
            "args.vocab_size, 50257,",
        ),
    ],
)
def test_a_size_is_found_under_the_name_that_it_has(tmp_path: Path, lines: str, reported: str) -> None:
    found = hints(tmp_path, lines, GPU)
    assert [hint.kind for hint in found] == ["shape"]
    assert found[0].text.startswith(f"{reported} is not a multiple of 8")
    assert "50264" in found[0].text


@pytest.mark.parametrize(
    "lines",
    [
        "size = 100\nsize = len(words)\nnn.Linear(64, size)\n",
        "size = 100\nsize = 128\nnn.Linear(64, size)\n",
        "size = 100\nsize += 28\nnn.Linear(64, size)\n",
        "size: int\nnn.Linear(64, size)\n",
        "flag = True\nnn.Linear(64, flag)\n",
        "p.add_argument('size')\nnn.Linear(64, args.size)\n",
    ],
)
def test_a_name_that_may_have_another_value_reports_no_size(tmp_path: Path, lines: str) -> None:
    assert hints(tmp_path, lines, GPU) == []


def test_a_tensor_made_on_the_host_in_every_step_is_found_where_there_is_a_device(tmp_path: Path) -> None:
    line = "    noise = torch.randn(8, 100).to(device)\n"
    assert ("copy", "train.py:6") in places(hints(tmp_path, LOOP + line, GPU))
    assert hints(tmp_path, LOOP + line, CPU) == []


def test_modules_of_the_users_own_are_read_and_never_run(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "loop.py").write_text(f"{LOOP}    print(loss)\nraise SystemExit('was run')\n")
    found = hints(tmp_path, "from parts.loop import train\nimport torch\ntrain()\n")
    assert places(found) == [("log", "parts/loop.py:6")]


def test_a_file_that_is_no_python_yields_nothing(tmp_path: Path) -> None:
    assert hints(tmp_path, "def broken(:\n") == []
    assert advise(str(tmp_path / "gone.py")) == ()


def test_what_a_hint_may_buy_is_bounded_by_its_part_of_a_step(tmp_path: Path) -> None:
    text = LOOP + "    print(loss)\nclass D:\n    def __getitem__(self, i):\n        return cv2.imread(i)\n"
    verdict = judge(
        Evidence(step_s=0.1, wait_frac=0.6, replay_step_s=0.04, phases_s={"forward": 0.037, "host": 0.003})
    )
    found = weighed(hints(tmp_path, text), verdict)
    assert [hint.kind for hint in found] == ["preprocess", "log"]
    assert advice_text(found[0]).endswith("(at most 60 % of a step)")
    assert advice_text(found[1]).endswith("(at most 3 % of a step)")
    assert "at most" not in advice_text(weighed(found[1:], None)[0])


DATASET = "class D:\n    def __getitem__(self, i):\n        return cv2.imread(i)\n"


def test_a_bound_on_what_better_loading_buys_is_the_larger_of_two_and_no_middle(tmp_path: Path) -> None:
    """The loop hardly waits, and on a cached batch it is much faster: loading takes cores from computing."""
    seen = Evidence(step_s=0.1, wait_frac=0.2, replay_step_s=0.04, phases_s={"forward": 0.04})
    (hint,) = weighed(hints(tmp_path, DATASET), judge(seen))
    assert judge(seen).shares["input"] == pytest.approx(0.4)
    assert hint.gain_frac_at_most == pytest.approx(0.6)
    (waits,) = weighed([hint], judge(replace(seen, wait_frac=0.7)))
    assert waits.gain_frac_at_most == pytest.approx(0.7)


def test_where_no_cached_batch_was_tried_waiting_alone_bounds_nothing(tmp_path: Path) -> None:
    (hint,) = weighed(hints(tmp_path, DATASET), judge(Evidence(step_s=0.1, wait_frac=0.2)))
    assert hint.gain_frac_at_most is None


def test_what_reading_a_value_buys_is_bounded_by_the_time_an_accelerator_stands_still(tmp_path: Path) -> None:
    seen = Evidence(
        step_s=0.1, wait_frac=0.1, phases_s={"forward": 0.09, "host": 0.003}, on_device=True, busy_frac=0.7
    )
    (hint,) = weighed(hints(tmp_path, LOOP + "    total += loss.item()\n", GPU), judge(seen), on_device=True)
    # Who reads less often runs ahead, which hides waiting for data as well: the whole of what is idle.
    assert hint.gain_frac_at_most == pytest.approx(0.3)


def test_what_reading_a_value_costs_beside_an_accelerator_without_counters_has_no_bound(
    tmp_path: Path,
) -> None:
    seen = Evidence(step_s=0.1, wait_frac=0.0, replay_step_s=0.1, phases_s={"forward": 0.097, "host": 0.003})
    found = hints(tmp_path, LOOP + "    total += loss.item()\n", GPU)
    (beside,) = weighed(found, judge(seen), on_device=True)
    (alone,) = weighed(found, judge(seen))
    assert beside.gain_frac_at_most is None
    assert "at most" not in advice_text(beside)
    assert alone.gain_frac_at_most == pytest.approx(0.03)


@pytest.mark.parametrize(
    "line", ["import gymnasium as gym", "from stable_baselines3 import PPO", "import tianshou.env"]
)
def test_who_learns_from_what_they_do_is_reported_once_what_counts(tmp_path: Path, line: str) -> None:
    found = [hint for hint in hints(tmp_path, f"{line}\nimport torchrl\n" + LOOP) if hint.kind == "rollout"]
    assert [(hint.place, hint.part) for hint in found] == [("train.py:1", "search")]
    assert "its time counts" in found[0].text


@pytest.mark.parametrize("line", ["from .gym import tour", "import gymnastics", "gym = None"])
def test_a_similar_name_gets_no_note(tmp_path: Path, line: str) -> None:
    assert "rollout" not in {hint.kind for hint in hints(tmp_path, f"{line}\n" + LOOP)}
