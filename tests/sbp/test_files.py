"""Files that cannot be written or read: why, and what to do."""

import pytest

import sbp
from sbp.errors import SbpError
from sbp.files import check_can_write, read_bytes, write_text


def refusal(call, *args):
    with pytest.raises(SbpError) as caught:
        call(*args)
    return str(caught.value)


def test_text_that_is_written_is_read(tmp_path):
    check_can_write(tmp_path / "x")
    write_text(tmp_path / "x", "text\n")
    assert read_bytes(str(tmp_path / "x")) == b"text\n"


@pytest.mark.parametrize("write", [check_can_write, lambda path: write_text(path, "")])
def test_a_folder_that_is_not_there(write, tmp_path):
    assert (
        refusal(write, tmp_path / "nope" / "x")
        == f"""\
'{tmp_path}/nope/x' cannot be written.
  There is no folder '{tmp_path}/nope'.
Fix one of: mkdir -p {tmp_path}/nope | a path in a folder that is there"""
    )


@pytest.mark.parametrize("write", [check_can_write, lambda path: write_text(path, "")])
def test_a_folder_is_no_file(write, tmp_path):
    assert (
        refusal(write, tmp_path)
        == f"""\
'{tmp_path}' cannot be written.
  It is a folder.
Fix: the path of a file in it"""
    )


def test_what_cannot_be_read(tmp_path):
    assert "There is no folder" in refusal(read_bytes, tmp_path / "nope" / "x")
    assert "It is a folder.\n" in refusal(read_bytes, tmp_path)
    assert (
        refusal(read_bytes, tmp_path / "x")
        == f"""\
'{tmp_path}/x' cannot be read.
  No such file or directory.
Fix: the path of a file that is there and can be read"""
    )


@pytest.mark.parametrize("use", [read_bytes, lambda path: write_text(path, ""), check_can_write])
def test_what_is_no_path(use):
    assert (
        refusal(use, 3.5)
        == """\
3.5 is not the path of a file.
  It is of type float.
Fix: text, or a pathlib.Path"""
    )


def test_a_hardware_file_that_cannot_be_written(tmp_path):
    text = refusal(sbp.hardware.CPU.save, tmp_path / "nope" / "machine.json")
    assert text.startswith(f"'{tmp_path}/nope/machine.json' cannot be written.\n")
