"""A log file for each process."""

import logging
import warnings

import pytest

from hf_compat.errors import TrainerSetupError
from hf_compat.log_files import ENVIRONMENT_VARIABLE, write_log_file

LOGGERS = ("hf_compat", "transformers", "lightning.pytorch", "lightning.fabric", "py.warnings")


@pytest.fixture(autouse=True)
def loggers_as_before():
    """Take back what a test does to the loggers."""
    before = {name: list(logging.getLogger(name).handlers) for name in LOGGERS}
    yield
    logging.captureWarnings(False)
    for name, handlers in before.items():
        for handler in [each for each in logging.getLogger(name).handlers if each not in handlers]:
            logging.getLogger(name).removeHandler(handler)
            handler.close()


def test_none_unless_asked_for(monkeypatch):
    """Without the variable nothing is touched."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    before = {name: list(logging.getLogger(name).handlers) for name in LOGGERS}
    write_log_file(0, logging.INFO)
    assert {name: logging.getLogger(name).handlers for name in LOGGERS} == before


def test_what_is_written(tmp_path, monkeypatch, capsys):
    """Records of the libraries and warnings from the level up, once each; warnings stay on standard error too."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "logs"))
    for _ in range(2):  # two Trainers in one process
        write_log_file(3, logging.WARNING)
    for name in LOGGERS[:-1]:
        logging.getLogger(f"{name}.part").warning("from %s", name)
        logging.getLogger(f"{name}.part").info("a detail")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("mind this", UserWarning, stacklevel=1)
    log = (tmp_path / "logs" / "rank_3.log").read_text()
    assert [log.count(f"WARNING {name}.part: from {name}\n") for name in LOGGERS[:-1]] == [1, 1, 1, 1]
    assert log.count("UserWarning: mind this") == 1
    assert "a detail" not in log
    assert "UserWarning: mind this" in capsys.readouterr().err


def test_forked_process_writes_its_own(tmp_path, monkeypatch):
    """A process that has another number than the one it was forked from leaves that one's file alone."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path))
    write_log_file(0, logging.INFO)
    write_log_file(1, logging.INFO)
    logging.getLogger("hf_compat").error("late")
    assert [path.read_text().count("late") for path in sorted(tmp_path.iterdir())] == [0, 1]


def test_folder_that_cannot_be(tmp_path, monkeypatch):
    """A file in the folder's place is named, with the variable."""
    (tmp_path / "logs").write_text("")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "logs"))
    with pytest.raises(TrainerSetupError, match=r"HF_COMPAT_LOG_DIR=.*rank_0\.log` cannot be written"):
        write_log_file(0, logging.INFO)
