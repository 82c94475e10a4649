"""The dashboard of `fit --tui` and `watch` in terminals of two sizes: every line fits, and the terminal is as it was after
the end, an interrupt and an error."""

import contextlib
import json
import signal

import numpy as np
import pytest
import tool
from terminal import Terminal, columns_of

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
SIZES = [(80, 24), (200, 60)]


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    """Arguments of a training without an end."""
    folder = tmp_path_factory.mktemp("terminal")
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(40, 4)).astype(np.float32), "labels": rng.integers(0, 3, 40)}
    tool.save(folder / "data.npz", data)
    tool.run("build", MLP, "-o", folder / "train.onnx", "--optimizer", "adamw")
    return ("fit", folder / "train.onnx", "--data", folder / "data.npz", "--eval-data", folder / "data.npz",
            "--batch-size", 8, "--eval-every", 200, "--time-limit", "60s")  # fmt: skip


def terminal(columns, rows, *arguments, **environment):
    return contextlib.closing(Terminal(columns, rows, *arguments, **environment))


def lines_fit(shown, output=None):
    pieces = shown.pieces(output)
    assert len(pieces) >= shown.rows
    return all(columns_of(text) <= shown.columns and row <= shown.rows for row, text in pieces)


@pytest.mark.parametrize("size", SIZES)
def test_a_training_is_shown_and_ctrl_c_stops_it(size, fit, tmp_path):
    with terminal(*size, *fit, "--out", tmp_path / "run", "--tui") as shown:
        shown.until(lambda output: "best loss" in output and output.count("time 0:0") > 2)
        screen = shown.screen()
        for text in "train.onnx", "running", "step ", "eval loss", "lr 0.001", "samples/s", "cpu", "memory", "learning rate":
            assert text in screen, f"no {text!r} in\n{screen}"
        assert "⣀" in screen or "⠉" in screen or "⠒" in screen
        assert lines_fit(shown) and "q or Ctrl-C stops" in screen.splitlines()[-1]
        shown.press("\x03")
        assert shown.end() == 130 and shown.is_restored()
        assert "interrupted at step" in shown.after() and "step 200  epoch 40  train loss" in shown.after()
        assert json.loads((tmp_path / "run/options.json").read_text())["tui"] is True


@pytest.mark.parametrize("size", [(20, 5), (39, 8), (500, 100)])
def test_unusual_sizes_are_filled(size, fit, tmp_path):
    with terminal(*size, *fit, "--out", tmp_path / "run", "--tui", NO_COLOR="1") as shown:
        shown.until(lambda output: output.count("step ") > 3)
        assert lines_fit(shown) and "\x1b[36m" not in shown.output
        shown.press("q")
        assert shown.end() == 130 and shown.is_restored()


def test_a_resized_terminal_is_drawn_anew(fit, tmp_path):
    with terminal(200, 60, *fit, "--out", tmp_path / "run", "--tui") as shown:
        shown.until(lambda output: output.count("time 0:0") > 1)
        shown.resize(60, 20)
        shown.forget()
        shown.until(lambda output: "\x1b[20;1H" in output.partition("\x1b[2J")[2])
        new = shown.output.partition("\x1b[2J")[2]
        assert lines_fit(shown, new)
        shown.press("q")
        assert shown.end() == 130


def test_the_end_an_error_and_a_second_interrupt_leave_the_terminal_as_it_was(fit, tmp_path):
    with terminal(80, 24, *fit[:-2], "--steps", 400, "--out", tmp_path / "ends", "--tui") as shown:
        assert shown.end() == 0 and shown.is_restored()
        assert "finished at step 400" in shown.after() and "epoch 80" in shown.after()
    with terminal(80, 24, *fit, "--lr", "1e30", "--out", tmp_path / "fails", "--tui") as shown:
        assert shown.end() == 1 and shown.is_restored() and "the loss is" in shown.after()
    with terminal(80, 24, *fit, "--out", tmp_path / "twice", "--tui") as shown:
        shown.until(lambda output: "running" in output)
        shown.send(signal.SIGINT)
        with contextlib.suppress(ProcessLookupError):
            shown.send(signal.SIGINT)
        assert shown.end() == 130 and shown.is_restored()
    with terminal(80, 24, *fit, "--out", tmp_path / "aborts", "--tui") as shown:
        shown.until(lambda output: "running" in output)
        shown.send(signal.SIGABRT)
        assert shown.end() == -signal.SIGABRT and shown.is_restored()


def test_without_a_terminal_plain_lines_follow_and_it_is_said(fit, tmp_path):
    printed = tool.run(*fit[:-2], "--steps", 20, "--out", tmp_path / "plain", "--tui")
    assert "--tui needs a terminal" in printed and "step 20/20" in printed and "\x1b" not in printed
    with terminal(80, 24, *fit[:-2], "--steps", 20, "--out", tmp_path / "dumb", "--tui", TERM="dumb") as shown:
        assert shown.end() == 0 and "--tui needs a terminal" in shown.output and "\x1b[?1049h" not in shown.output
    said = tool.run(*fit, "--out", tmp_path / "both", "--tui", "--json", status=2)
    assert "leave out one of them" in said


@pytest.mark.parametrize("size", SIZES)
def test_watch_shows_the_same_and_leaves_the_run_alone(size, fit, tmp_path):
    run = tmp_path / "a \x1b[31mrun"  # a name that would colour the terminal
    training = tool.start(*fit, "--out", run)
    try:
        while not (run / "epochs.jsonl").exists() or not (run / "epochs.jsonl").stat().st_size:
            assert training.poll() is None
        with terminal(*size, "watch", run, "--every", "0.05") as shown:
            shown.until(lambda output: "best loss" in output and "q leaves" in output)
            screen = shown.screen()
            assert all(text in screen for text in ("running", "eval loss", "samples/s", "learning rate", "q leaves"))
            assert lines_fit(shown) and "\x1b[31m" not in shown.output
            shown.press("q")
            assert shown.end() == 0 and shown.is_restored() and training.poll() is None
        with terminal(*size, "watch", run, "--every", "0.05") as shown:
            shown.until(lambda output: "running" in output)
            training.send_signal(signal.SIGINT)
            assert shown.end() == 0 and shown.is_restored() and "ended: " in shown.after() and "step " in shown.after()
    finally:
        training.kill()
        training.communicate()


