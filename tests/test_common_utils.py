"""load_jsonl never raises."""

from reward_kit import load_jsonl


def test_lines_that_are_not_json_are_left_out_and_logged(tmp_path, caplog):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n\n# comment\n[2]\n{"b"\n', encoding="utf-8")
    assert load_jsonl(file) == load_jsonl(str(file)) == [{"a": 1}, [2]]
    assert f"{file}:5: not JSON" in caplog.text


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, caplog):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"b": 2}\n', encoding="utf-8-sig")
    assert load_jsonl(tmp_path / "rows.jsonl") == [{"a": 1}, {"b": 2}]
    assert caplog.text == ""


def test_a_file_that_cannot_be_read_gives_an_empty_list(tmp_path, caplog):
    assert load_jsonl(tmp_path / "missing.jsonl") == []
    assert load_jsonl(tmp_path) == []
    (tmp_path / "binary").write_bytes(b'{"a": 1}\n\xff\xfe')
    assert load_jsonl(tmp_path / "binary") == []
    assert "missing.jsonl cannot be read" in caplog.text
